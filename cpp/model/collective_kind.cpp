#include "model/collective_kind.hpp"

#include <algorithm>

#include "support/error.hpp"

namespace tacos {

const KindTraits* find_kind(std::string_view name) {
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const KindTraits& one) { return one.name == name; });
  return found == kKinds.end() ? nullptr : &*found;
}

CollectiveKind collective_kind(std::string_view name) {
  const auto* found = find_kind(name);
  if (!found) invalid("unknown collective \"" + std::string(name) + "\"");
  return found->kind;
}

std::string label_of(std::string_view name) {
  std::string label(name);
  std::replace(label.begin(), label.end(), '_', '-');
  return label;
}

double bus_factor(BusFactor factor, double members) {
  switch (factor) {
    case BusFactor::undefined:
      return 0;
    case BusFactor::one:
      return 1;
    case BusFactor::others:
      return (members - 1) / members;
    case BusFactor::twice_others:
      return 2 * (members - 1) / members;
  }
  return 0;
}

}  // namespace tacos
