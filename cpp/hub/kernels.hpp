// The arithmetic of the optimizer service: sums of gradients, and optimizers as torch.optim defines them.
//
// Gradients arrive as float32, bfloat16 or float16 and are summed in float32. Weights and optimizer state are
// float32. SGD rounds where torch's CPU kernels round (x + alpha*y is one fused operation; a product that is
// scaled in place is rounded first), so its results have the same bits on every machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "hub/frame.hpp"

namespace tacos::hub {

enum class OptimizerKind : std::uint8_t { sgd, adam, adamw };
OptimizerKind optimizer_named(std::string_view name);  // throws std::invalid_argument
Wire wire_named(std::string_view name);                // throws std::invalid_argument

// Hyperparameters of a parameter group, with torch's names and defaults.
struct ParameterGroup {
  double lr = 1e-3, momentum = 0.0, dampening = 0.0, weight_decay = 0.0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool nesterov = false, maximize = false, amsgrad = false;
};

constexpr std::size_t kMostStates = 3;
// The number of float32 arrays of state that an optimizer keeps for its weights.
std::size_t states_of(OptimizerKind optimizer, const ParameterGroup& group);

// sum = values, or sum += values.
void take(float* sum, const void* values, Wire wire, std::size_t count, bool first);
// Sums several arrays, in their order. The bits are those of one take() per array, but the sum is written only once, and
// a core reads several streams faster than one.
void take_all(float* sum, std::span<const float* const> values, std::size_t count);
// Values in a wire format, rounded to nearest even.
void narrow(void* to, const float* values, Wire wire, std::size_t count);

struct Update {
  OptimizerKind optimizer = OptimizerKind::sgd;
  const ParameterGroup* group = nullptr;
  double lr = 0.0;
  std::uint64_t number = 1;  // of this update, counted from 1
  float divisor = 1.0F;      // divides the sum: the number of contributions, or 1
};
// One optimizer step of a chunk.
void update(const Update& how, float* weights, const float* sum,
            const std::array<float*, kMostStates>& states, std::size_t count);

}  // namespace tacos::hub
