#include "lowering/sum_order.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "support/index.hpp"

namespace tacos {

namespace {

std::uint64_t scrambled(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185;
  x = (x ^ (x >> 27)) * 0x81dadef4bc2dd44d;
  return x ^ (x >> 33);
}

// Follows the values of one chunk after the other.
class Follower {
 public:
  Follower(const Collective& collective, std::span<const SummedTransfer> transfers,
           SumOrder& result)
      : collective_(collective),
        transfers_(transfers),
        result_(result),
        values_(at(collective.npus())),
        last_(at(collective.npus())) {}

  // Whether the chunk ends at several NPUs that have added it up themselves.
  bool summed_by_several(ChunkId chunk, std::span<const std::uint32_t> mine) {
    const auto outputs = collective_.outputs(chunk);
    if (!collective_.reduces(chunk) || outputs.size() < 2) return false;
    for (const NodeId npu : outputs) last_[at(npu)] = {-1, Op::reduce};
    for (const auto i : mine) {
      const auto& transfer = transfers_[i];
      auto& last = last_[at(transfer.dst)];
      last = std::max(last, std::pair(transfer.arrival, transfer.op));
    }
    return std::count_if(outputs.begin(), outputs.end(),
                         [&](NodeId npu) { return last_[at(npu)].second == Op::reduce; }) > 1;
  }

  void follow(ChunkId chunk, std::span<const std::uint32_t> mine) {
    for (const auto i : mine) {
      values_[at(transfers_[i].src)] = {};
      values_[at(transfers_[i].dst)] = {};
    }
    for (const NodeId npu : collective_.outputs(chunk)) values_[at(npu)] = {};
    for (const NodeId npu : collective_.inputs(chunk))
      values_[at(npu)] = {leaf(npu), 1, npu, npu, {}};
    open_.clear();
    list_events(mine);
    carried_.assign(events_.size(), {});
    for (const Event& event : events_) {
      const auto& transfer = transfers_[mine[event.entry]];
      if (event.order == kStarts) {
        carried_[event.entry] = transfer.reads == Reads::input
                                    ? Carried{leaf(transfer.src), transfer.src}
                                    : read(transfer.src);
        continue;
      }
      Value& into = values_[at(transfer.dst)];
      const auto& [hash, least] = carried_[event.entry];
      if (transfer.op == Op::copy) {
        into = {hash, 1, least, least, {}};
        continue;
      }
      if (into.operands == 1) into.hash = scrambled(into.hash);
      into.hash = into.operands == 0 ? hash : into.hash + scrambled(hash);
      ++into.operands;
      into.least = into.operands == 1 ? least : std::min(into.least, least);
      into.arrived.push_back({least, mine[event.entry]});
    }
    for (const NodeId npu : collective_.outputs(chunk)) read(npu);
    for (auto& [hash, sums] : open_) {
      if (sums.size() < 2) continue;
      for (auto& operands : sums) put_in_order(operands);
    }
  }

 private:
  static constexpr std::uint32_t kOwn = ~std::uint32_t{0};
  static constexpr std::uint8_t kStarts = 2;

  struct Operand {
    NodeId least;
    std::uint32_t transfer;  // kOwn: what `acc` held
  };
  struct Value {
    std::uint64_t hash = 0;  // of the one operand, or the sum of several scrambled ones
    std::int32_t operands = 0;
    NodeId least = -1;             // smallest NPU that has contributed
    NodeId own = -1;               // `least` of what `acc` held before `arrived`; -1: nothing
    std::vector<Operand> arrived;  // since the last read
  };
  struct Carried {
    std::uint64_t hash = 0;
    NodeId least = -1;
  };
  struct Event {
    Time time;
    std::uint8_t order;  // at one moment: copies land, then sums, then transfers start
    std::uint32_t entry;
    auto operator<=>(const Event&) const = default;
  };

  static std::uint64_t leaf(NodeId npu) {
    return scrambled(static_cast<std::uint64_t>(npu) + 0x9e3779b97f4a7c15);
  }

  void list_events(std::span<const std::uint32_t> mine) {
    events_.clear();
    for (std::uint32_t entry = 0; entry < mine.size(); ++entry) {
      const auto& transfer = transfers_[mine[entry]];
      const auto lands = static_cast<std::uint8_t>(transfer.op == Op::reduce ? 1 : 0);
      events_.push_back({transfer.start, kStarts, entry});
      events_.push_back({transfer.arrival, lands, entry});
    }
    std::sort(events_.begin(), events_.end());
  }

  // Closes the open sum.
  Carried read(NodeId npu) {
    Value& value = values_[at(npu)];
    if (value.operands > 1) {
      value.hash = scrambled(value.hash + at(value.operands));
      if (value.operands > 2) {
        auto& operands = open_[value.hash].emplace_back(value.arrived);
        if (value.own >= 0) operands.push_back({value.own, kOwn});
      }
    }
    value.operands = std::min(value.operands, 1);
    value.own = value.least;
    value.arrived.clear();
    return {value.hash, value.least};
  }

  void put_in_order(std::vector<Operand>& operands) {
    std::stable_sort(operands.begin(), operands.end(),
                     [](const Operand& a, const Operand& b) { return a.least < b.least; });
    if (operands[1].transfer == kOwn) std::swap(operands[0], operands[1]);
    if (result_.places.empty()) result_.places.resize(transfers_.size());
    const auto number = static_cast<std::int32_t>(result_.sums.size());
    SumOrder::Sum sum{static_cast<std::int32_t>(operands.size()), -1};
    for (std::int32_t i = 0; i < sum.operands; ++i) {
      const auto transfer = operands[at(i)].transfer;
      if (transfer == kOwn) {
        sum.own = i;
      } else {
        result_.places[transfer] = {number, i};
      }
    }
    result_.sums.push_back(sum);
  }

  const Collective& collective_;
  std::span<const SummedTransfer> transfers_;
  SumOrder& result_;
  std::vector<Value> values_;              // per NPU
  std::vector<std::pair<Time, Op>> last_;  // per NPU, the last arrival
  std::vector<Event> events_;
  std::vector<Carried> carried_;
  std::map<std::uint64_t, std::vector<std::vector<Operand>>> open_;  // sums by their operands
};

}  // namespace

SumOrder sum_order(const Collective& collective, std::span<const SummedTransfer> transfers) {
  SumOrder result;
  if (!sums_end_at_several(collective)) return result;
  std::vector<std::size_t> begin(at(collective.chunks()) + 1, 0);
  for (const auto& transfer : transfers) ++begin[at(transfer.chunk) + 1];
  std::partial_sum(begin.begin(), begin.end(), begin.begin());
  std::vector<std::uint32_t> by_chunk(transfers.size());
  auto next = begin;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    by_chunk[next[at(transfers[i].chunk)]++] = static_cast<std::uint32_t>(i);
  }
  Follower follower(collective, transfers, result);
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    const auto mine = std::span<const std::uint32_t>(by_chunk).subspan(
        begin[at(chunk)], begin[at(chunk) + 1] - begin[at(chunk)]);
    if (follower.summed_by_several(chunk, mine)) follower.follow(chunk, mine);
  }
  return result;
}

bool sums_end_at_several(const Collective& collective) {
  for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
    if (collective.reduces(chunk) && collective.outputs(chunk).size() > 1) return true;
  }
  return false;
}

}  // namespace tacos
