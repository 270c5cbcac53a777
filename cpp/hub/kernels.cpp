// Compiled without contraction of products and sums: fused operations use std::fma explicitly.
#include "hub/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "runtime/half.hpp"
#include "support/error.hpp"
#include "support/vectorized.hpp"

namespace tacos::hub {

namespace {

constexpr std::array<std::string_view, 3> kOptimizers = {"sgd", "adam", "adamw"};
constexpr std::array<std::string_view, 3> kWires = {"float32", "bfloat16", "float16"};

inline float wide(float value) { return value; }
inline float wide(Brain value) { return widened(value); }
inline float wide(Half value) { return widened(value); }

template <typename T>
TACOS_VECTORIZED void store(float* __restrict sum, const T* __restrict values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] = wide(values[i]);
}

template <typename T>
TACOS_VECTORIZED void add(float* __restrict sum, const T* __restrict values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += wide(values[i]);
}

constexpr std::size_t kSideBySide = 4;  // streams that a core reads at once

template <std::size_t arrays, bool first>
TACOS_VECTORIZED void add_arrays(float* __restrict sum, const float* const* values,
                                 std::size_t count) {
  std::array<const float*, arrays> from{};
  std::copy_n(values, arrays, from.begin());
  for (std::size_t i = 0; i < count; ++i) {
    float s = first ? from[0][i] : sum[i] + from[0][i];
    for (std::size_t k = 1; k < arrays; ++k) s += from[k][i];
    sum[i] = s;
  }
}

template <bool first>
void add_some(float* sum, std::span<const float* const> values, std::size_t count) {
  switch (values.size()) {
    case 1:
      return add_arrays<1, first>(sum, values.data(), count);
    case 2:
      return add_arrays<2, first>(sum, values.data(), count);
    case 3:
      return add_arrays<3, first>(sum, values.data(), count);
    default:
      return add_arrays<kSideBySide, first>(sum, values.data(), count);
  }
}

TACOS_VECTORIZED void narrow_brain(Brain* __restrict to, const float* __restrict values,
                                   std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = shortened(values[i]);
}

TACOS_VECTORIZED void narrow_half(Half* __restrict to, const float* __restrict values,
                                  std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] = halved(values[i]);
}

struct SgdStep {
  float lr, momentum, fresh, decay, divisor;  // fresh: 1 - dampening
};

// The first update takes the gradient itself as momentum, as torch does.
enum class Momentum : std::uint8_t { none, first, later };

template <Momentum kind, bool nesterov, bool maximize, bool decays>
TACOS_VECTORIZED void sgd(const SgdStep& s, float* __restrict weights, const float* __restrict sum,
                          float* __restrict buffer, std::size_t count) {
  const float lr = s.lr, momentum = s.momentum, fresh = s.fresh, decay = s.decay,
              divisor = s.divisor;
  for (std::size_t i = 0; i < count; ++i) {
    float g = sum[i] / divisor;
    if constexpr (maximize) g = -g;
    if constexpr (decays) g = std::fma(weights[i], decay, g);
    if constexpr (kind != Momentum::none) {
      float m = g;
      if constexpr (kind == Momentum::later) m = std::fma(g, fresh, buffer[i] * momentum);
      buffer[i] = m;
      g = nesterov ? std::fma(m, momentum, g) : m;
    }
    weights[i] = std::fma(g, -lr, weights[i]);
  }
}

template <Momentum kind, bool nesterov>
void sgd_with(const SgdStep& s, bool maximize, float* w, const float* g, float* m, std::size_t n) {
  if (maximize) {
    if (s.decay != 0.0F) return sgd<kind, nesterov, true, true>(s, w, g, m, n);
    return sgd<kind, nesterov, true, false>(s, w, g, m, n);
  }
  if (s.decay != 0.0F) return sgd<kind, nesterov, false, true>(s, w, g, m, n);
  return sgd<kind, nesterov, false, false>(s, w, g, m, n);
}

void sgd_step(const Update& how, float* w, const float* g, float* m, std::size_t n) {
  const auto& group = *how.group;
  const SgdStep s{static_cast<float>(how.lr), static_cast<float>(group.momentum),
                  static_cast<float>(1.0 - group.dampening), static_cast<float>(group.weight_decay),
                  how.divisor};
  if (group.momentum == 0.0) {
    sgd_with<Momentum::none, false>(s, group.maximize, w, g, m, n);
  } else if (how.number == 1) {
    group.nesterov ? sgd_with<Momentum::first, true>(s, group.maximize, w, g, m, n)
                   : sgd_with<Momentum::first, false>(s, group.maximize, w, g, m, n);
  } else {
    group.nesterov ? sgd_with<Momentum::later, true>(s, group.maximize, w, g, m, n)
                   : sgd_with<Momentum::later, false>(s, group.maximize, w, g, m, n);
  }
}

struct AdamStep {
  float beta1, beta2, fresh1, fresh2, eps, size, root, decay, shrink, divisor, sign;
};

template <bool amsgrad>
TACOS_VECTORIZED void adam(const AdamStep& s, float* __restrict weights,
                           const float* __restrict sum, float* __restrict mean,
                           float* __restrict square, float* __restrict largest, std::size_t count) {
  const AdamStep c = s;
  for (std::size_t i = 0; i < count; ++i) {
    const float w = weights[i] * c.shrink;
    const float g = std::fma(w, c.decay, sum[i] / c.divisor * c.sign);
    const float m = std::fma(g - mean[i], c.fresh1, mean[i]);
    const float v = std::fma(g * g, c.fresh2, square[i] * c.beta2);
    mean[i] = m;
    square[i] = v;
    float top = v;
    if constexpr (amsgrad) {
      top = largest[i] > v ? largest[i] : v;
      largest[i] = top;
    }
    weights[i] = w - c.size * m / (std::sqrt(top) / c.root + c.eps);
  }
}

void adam_step(const Update& how, float* w, const float* g,
               const std::array<float*, kMostStates>& states, std::size_t n) {
  const auto& group = *how.group;
  const auto t = static_cast<double>(how.number);
  const bool decoupled = how.optimizer == OptimizerKind::adamw;
  AdamStep s{};
  s.beta1 = static_cast<float>(group.beta1);
  s.beta2 = static_cast<float>(group.beta2);
  s.fresh1 = static_cast<float>(1.0 - group.beta1);
  s.fresh2 = static_cast<float>(1.0 - group.beta2);
  s.eps = static_cast<float>(group.eps);
  s.size = static_cast<float>(how.lr / (1.0 - std::pow(group.beta1, t)));
  s.root = static_cast<float>(std::sqrt(1.0 - std::pow(group.beta2, t)));
  s.decay = decoupled ? 0.0F : static_cast<float>(group.weight_decay);
  s.shrink = decoupled ? static_cast<float>(1.0 - how.lr * group.weight_decay) : 1.0F;
  s.divisor = how.divisor;
  s.sign = group.maximize ? -1.0F : 1.0F;
  group.amsgrad ? adam<true>(s, w, g, states[0], states[1], states[2], n)
                : adam<false>(s, w, g, states[0], states[1], states[2], n);
}

template <std::size_t count>
std::size_t place(std::string_view what, const std::array<std::string_view, count>& names,
                  std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    std::string known;
    for (const auto each : names) known += (known.empty() ? "" : ", ") + std::string(each);
    invalid(std::string(what) + " must be one of " + known + "; got '" + std::string(name) + "'");
  }
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace

OptimizerKind optimizer_named(std::string_view name) {
  return static_cast<OptimizerKind>(place("optimizer", kOptimizers, name));
}

Wire wire_named(std::string_view name) { return static_cast<Wire>(place("wire", kWires, name)); }

std::size_t states_of(OptimizerKind optimizer, const ParameterGroup& group) {
  if (optimizer == OptimizerKind::sgd) return group.momentum != 0.0 ? 1 : 0;
  return group.amsgrad ? 3 : 2;
}

void take(float* sum, const void* values, Wire wire, std::size_t count, bool first) {
  switch (wire) {
    case Wire::float32:
      if (first) {
        std::memcpy(sum, values, count * sizeof(float));
      } else {
        add(sum, static_cast<const float*>(values), count);
      }
      return;
    case Wire::bfloat16:
      first ? store(sum, static_cast<const Brain*>(values), count)
            : add(sum, static_cast<const Brain*>(values), count);
      return;
    case Wire::float16:
      first ? store(sum, static_cast<const Half*>(values), count)
            : add(sum, static_cast<const Half*>(values), count);
  }
}

void take_all(float* sum, std::span<const float* const> values, std::size_t count) {
  for (std::size_t i = 0; i < values.size(); i += kSideBySide) {
    const auto some = values.subspan(i, std::min(kSideBySide, values.size() - i));
    i == 0 ? add_some<true>(sum, some, count) : add_some<false>(sum, some, count);
  }
}

void narrow(void* to, const float* values, Wire wire, std::size_t count) {
  switch (wire) {
    case Wire::float32:
      std::memcpy(to, values, count * sizeof(float));
      return;
    case Wire::bfloat16:
      return narrow_brain(static_cast<Brain*>(to), values, count);
    case Wire::float16:
      return narrow_half(static_cast<Half*>(to), values, count);
  }
}

void update(const Update& how, float* weights, const float* sum,
            const std::array<float*, kMostStates>& states, std::size_t count) {
  if (how.optimizer == OptimizerKind::sgd) return sgd_step(how, weights, sum, states[0], count);
  adam_step(how, weights, sum, states, count);
}

}  // namespace tacos::hub
