// Transfers in flight, in the order of their arrivals in the schedule.
//
// Transfers are sent in the order of the schedule's starts, so those with equal durations also arrive in that order. There is
// one list per duration, and a heap of the lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "model/topology.hpp"

namespace tacos::simulation {

class InFlight {
 public:
  struct Arrival {
    Time due;   // arrival in the schedule
    Time time;  // arrival in this run
    std::size_t cell;
    NodeId node;
    bool copies;
    std::uint64_t number;  // breaks ties between equal times
  };
  using List = std::uint32_t;

  List list_of(Time duration) {
    const auto [found, added] = lists_of_.try_emplace(duration, static_cast<List>(lists_.size()));
    if (added) lists_.emplace_back();
    return found->second;
  }

  void send(List list, const Arrival& arrival) {
    if (lists_[list].empty()) heads_.emplace(arrival.due, arrival.number, list);
    lists_[list].push(arrival);
  }

  // Calls visit(arrival) for all transfers that are due until then, and before it soon(arrival) for one that will probably follow.
  template <typename Visit, typename Soon>
  void arrive(Time until, const Visit& visit, const Soon& soon) {
    while (!heads_.empty() && std::get<0>(heads_.top()) <= until) {
      const auto which = std::get<2>(heads_.top());
      heads_.pop();
      auto& list = lists_[which];
      // Continue with this list up to the next entry of another list.
      const Head other = heads_.empty() ? Head{kNever, 0, 0} : heads_.top();
      while (!list.empty() && list.first().due <= until &&
             Head{list.first().due, list.first().number, which} < other) {
        if (const Arrival* later = list.after_first(kAhead)) soon(*later);
        visit(list.first());
        list.pop();
      }
      if (!list.empty()) heads_.emplace(list.first().due, list.first().number, which);
    }
  }

 private:
  static constexpr std::size_t kAhead = 12;
  using Head = std::tuple<Time, std::uint64_t, List>;
  class Queue {
   public:
    bool empty() const { return first_ == all_.size(); }
    const Arrival& first() const { return all_[first_]; }
    const Arrival* after_first(std::size_t count) const {
      return first_ + count < all_.size() ? &all_[first_ + count] : nullptr;
    }
    void push(const Arrival& arrival) { all_.push_back(arrival); }
    void pop() {
      if (++first_ < 1024 || 2 * first_ < all_.size()) return;
      all_.erase(all_.begin(), all_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }

   private:
    std::vector<Arrival> all_;
    std::size_t first_ = 0;
  };

  std::vector<Queue> lists_;
  std::unordered_map<Time, List> lists_of_;
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads_;
};

}  // namespace tacos::simulation
