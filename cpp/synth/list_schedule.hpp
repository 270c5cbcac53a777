// List scheduling: a free server takes the most urgent task that is ready.
//
// A task is a transfer over one server. A server is a way through the network: it takes resources, such as links, each from
// when the head of a task reaches it (its offset) until the task has passed. Servers may share resources, at different offsets. A task is
// ready when, for each task that it waits for, a time has passed since that one started: its lag, which may be negative.
//
// Time goes from one moment to the next at which a task becomes ready or a server may find a resource free. At a moment,
// servers that are concerned, have a task, and would find their resources free, offer their most urgent task. The caller
// chooses some of them, in order; then each that still fits starts, and what has started is never moved again. The choice
// depends on the offers and not on how they are listed, so the order of equal events does not matter, and the result is the
// same everywhere.
//
// Cost: O(n (log n + w (u + v))) for n tasks with w windows, if u servers share a resource at v different offsets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "model/routes.hpp"
#include "support/index.hpp"
#include "support/progress.hpp"
#include "support/work.hpp"

namespace tacos {

// The servers, numbered from 0, and which of them share resources.
class Servers {
 public:
  struct Take {
    std::int32_t resource;
    Time offset;
  };

  explicit Servers(std::size_t resources) : users_(resources), offsets_(resources) {}

  // Adds a server, with the resources of its windows as links.
  std::int32_t add(std::span<const Routes::Window> windows) {
    const auto server = static_cast<std::int32_t>(count());
    for (const auto& window : windows) {
      takes_.push_back({window.link, window.offset});
      auto& users = users_[at(window.link)];
      if (users.empty() || users.back() != server) users.push_back(server);
      auto& offsets = offsets_[at(window.link)];
      const auto place = std::lower_bound(offsets.begin(), offsets.end(), window.offset);
      if (place == offsets.end() || *place != window.offset) offsets.insert(place, window.offset);
    }
    begin_.push_back(takes_.size());
    return server;
  }

  std::size_t count() const { return begin_.size() - 1; }
  std::span<const Take> takes(std::int32_t server) const {
    const auto first = begin_[at(server)];
    return std::span(takes_).subspan(first, begin_[at(server) + 1] - first);
  }
  std::size_t resources() const { return users_.size(); }
  std::span<const std::int32_t> users(std::int32_t resource) const { return users_[at(resource)]; }
  // The different offsets at which servers reach a resource, ascending.
  std::span<const Time> offsets(std::int32_t resource) const { return offsets_[at(resource)]; }
  // Whether no resource has more than one user.
  bool separate() const {
    return std::ranges::all_of(users_, [](const auto& users) { return users.size() <= 1; });
  }

 private:
  std::vector<Take> takes_;
  std::vector<std::size_t> begin_{0};
  std::vector<std::vector<std::int32_t>> users_;
  std::vector<std::vector<Time>> offsets_;
};

struct ListTasks {
  std::span<const std::int32_t> server;  // of each task
  std::span<const std::int32_t> order;   // all tasks, the most urgent first
  std::vector<std::int32_t> waits;       // for how many tasks each waits
  Time quantum = 1;                      // starts are multiples of it
};

// The most urgent task of a server, by its place in the order.
struct ListOffer {
  std::int32_t rank, server;
  auto operator<=>(const ListOffer&) const = default;
};

// Finds when each task starts; -1 if it never does, because tasks wait for each other. The shop provides
//     windows(task)          the resources that it takes, with the offsets of its server
//     follow(task, visit)    calls visit(next, lag) for the tasks that wait for it
//     choose(offers)        the servers that start at a moment, in order
//     started(task, now)
//     goes_on()             after each moment: false to end
template <typename Shop>
class ListSchedule {
 public:
  ListSchedule(const Servers& servers, ListTasks tasks, Shop& shop, const Progress& progress)
      : servers_(servers),
        tasks_(std::move(tasks)),
        shop_(shop),
        progress_(progress),
        waiting_(servers.count()),
        touched_before_(servers.count(), 0),
        free_(servers.resources(), 0),
        rank_(tasks_.order.size()),
        ready_(rank_.size(), 0),
        start_(rank_.size(), -1) {
    for (std::size_t i = 0; i < rank_.size(); ++i) {
      rank_[at(tasks_.order[i])] = static_cast<std::int32_t>(i);
    }
  }

  std::vector<Time> run() && {
    for (std::size_t task = 0; task < start_.size(); ++task) {
      if (tasks_.waits[task] == 0) enter(static_cast<std::int32_t>(task));
    }
    for (Time now = 0;; now = events_.top().time) {
      for (; !events_.empty() && events_.top().time <= now; events_.pop()) {
        ++handled_;
        const auto what = events_.top().what;
        if (what >= 0) {
          enter(what);
        } else {
          for (const auto server : servers_.users(~what)) touch(server);
        }
      }
      serve(now);
      if (handled_ + tried_ > 0xfff) spend();
      if (!shop_.goes_on() || events_.empty()) break;
    }
    spend();
    return std::move(start_);
  }

 private:
  using Ranks = std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>>;
  struct Event {
    Time time;
    std::int32_t what;  // the task that is ready, or ~resource
    bool operator>(const Event& other) const { return time > other.time; }
  };

  void spend() {
    progress_.spend(static_cast<double>(std::exchange(handled_, 0)) * work::kEvent +
                    static_cast<double>(std::exchange(tried_, 0)) * work::kTry);
  }

  void enter(std::int32_t task) {
    const auto server = tasks_.server[at(task)];
    waiting_[at(server)].push(rank_[at(task)]);
    touch(server);
  }

  void touch(std::int32_t server) {
    if (waiting_[at(server)].empty() || std::exchange(touched_before_[at(server)], 1)) return;
    touched_.push_back(server);
  }

  bool fits(std::int32_t server, Time now) const {
    return std::ranges::all_of(servers_.takes(server), [&](const Servers::Take& take) {
      return free_[at(take.resource)] <= now + take.offset;
    });
  }

  void serve(Time now) {
    offers_.clear();
    tried_ += touched_.size();
    for (const auto server : touched_) {
      touched_before_[at(server)] = 0;
      if (fits(server, now)) offers_.push_back({waiting_[at(server)].top(), server});
    }
    touched_.clear();
    if (offers_.empty()) return;
    for (const std::int32_t server : shop_.choose(std::span(offers_))) {
      if (fits(server, now)) start(server, now);
    }
  }

  void start(std::int32_t server, Time now) {
    const auto task = tasks_.order[at(waiting_[at(server)].top())];
    waiting_[at(server)].pop();
    start_[at(task)] = now;
    for (const auto& window : shop_.windows(task)) {
      const Time free = now + window.offset + window.busy;
      free_[at(window.link)] = free;
      // The later a server reaches the resource, the earlier it may start.
      for (const Time offset : servers_.offsets(window.link)) {
        if (free - offset > now || window.busy == 0) {
          wake(std::max(free - offset, now), ~window.link);
        }
      }
    }
    shop_.follow(task, [&](std::int32_t next, Time lag) {
      ready_[at(next)] = std::max(ready_[at(next)], now + lag);
      if (--tasks_.waits[at(next)] == 0) wake(std::max(ready_[at(next)], now), next);
    });
    shop_.started(task, now);
  }

  void wake(Time time, std::int32_t what) {
    if (tasks_.quantum > 1) time = (time + tasks_.quantum - 1) / tasks_.quantum * tasks_.quantum;
    events_.push({time, what});
  }

  const Servers& servers_;
  ListTasks tasks_;
  Shop& shop_;
  const Progress& progress_;
  std::size_t handled_ = 0,
              tried_ = 0;       // events, and servers that were concerned, since the last count
  std::vector<Ranks> waiting_;  // of each server: the tasks that are ready
  std::vector<std::uint8_t> touched_before_;  // whether a server is in the list of those concerned
  std::vector<std::int32_t> touched_;
  std::vector<ListOffer> offers_;
  std::vector<Time> free_;          // when each resource becomes free
  std::vector<std::int32_t> rank_;  // of each task
  std::vector<Time> ready_;         // of each task, as far as known
  std::vector<Time> start_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace tacos
