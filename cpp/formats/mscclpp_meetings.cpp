#include "formats/mscclpp_meetings.hpp"

#include <algorithm>

#include "support/index.hpp"

namespace tacos::mscclpp {

Meetings::Meetings(const ExecutionPlan& plan) : plan_(plan) {
  for (const Kind kind : {Kind::memory, Kind::port}) {
    auto& first = first_channel_[at(kind)];
    first.push_back(0);
    for (const auto& gpu : plan.gpus) {
      first.push_back(first.back());
      for (const auto& some : gpu.channels) {
        if (some.kind == kind) first.back() += some.peers.size();
      }
    }
    signals_[at(kind)].resize(first.back());
    waits_[at(kind)].resize(first.back());
  }
}

std::size_t Meetings::channel(NodeId gpu, Kind kind, std::int32_t number) const {
  return first_channel_[at(kind)][at(gpu)] + at(number);
}

void Meetings::signal(NodeId gpu, Kind kind, std::int32_t number, Step step) {
  signals_[at(kind)][channel(gpu, kind, number)].push_back(step);
}

void Meetings::wait(NodeId gpu, Kind kind, std::int32_t number, Step step) {
  waits_[at(kind)][channel(gpu, kind, number)].push_back(step);
}

void Meetings::acquire(NodeId gpu, std::int32_t semaphore, ThreadId thread, Step step) {
  acquires_[{gpu, semaphore}][thread].push_back(step);
}

void Meetings::release(NodeId gpu, std::int32_t semaphore, ThreadId thread, Step step) {
  releases_[{gpu, semaphore}][thread].push_back(step);
}

void Meetings::barrier(NodeId gpu, std::int32_t number, ThreadId thread, Step comes,
                       std::int32_t expected, std::string where) {
  barriers_[{gpu, number}][thread].push_back({comes, expected, std::move(where)});
}

void Meetings::wrote(std::int64_t first_slot, std::int64_t slots, Step step) {
  for (auto slot = first_slot; slot < first_slot + slots; ++slot) packets_.try_emplace(slot, step);
}

void Meetings::reads(std::int64_t first_slot, std::int64_t slots, Step step, std::string where) {
  reads_.push_back({first_slot, slots, step, std::move(where)});
}

void Meetings::join(Steps& steps) const {
  join_channels(steps);
  join_semaphores(steps);
  join_barriers(steps);
  join_packets(steps);
}

// The k-th channel of a kind to a peer matches the peer's k-th channel back. The k-th signal matches the k-th wait.
void Meetings::join_channels(Steps& steps) const {
  for (const Kind kind : {Kind::memory, Kind::port}) {
    std::map<std::pair<NodeId, NodeId>, std::vector<std::size_t>> ends;
    for (NodeId gpu = 0; at(gpu) < plan_.gpus.size(); ++gpu) {
      auto next = first_channel_[at(kind)][at(gpu)];
      for (const auto& some : plan_.gpus[at(gpu)].channels) {
        if (some.kind != kind) continue;
        for (auto i = some.peers.begin; i < some.peers.end; ++i) {
          ends[{gpu, plan_.numbers[i]}].push_back(next++);
        }
      }
    }
    for (const auto& [pair, here] : ends) {
      const auto there = ends.find({pair.second, pair.first});
      if (there == ends.end()) continue;
      for (std::size_t k = 0; k < std::min(here.size(), there->second.size()); ++k) {
        const auto& waits = waits_[at(kind)][here[k]];
        const auto& signals = signals_[at(kind)][there->second[k]];
        for (std::size_t i = 0; i < std::min(waits.size(), signals.size()); ++i) {
          steps.comes_from[at(waits[i])] = signals[i];
        }
      }
    }
  }
}

// A thread that has acquired a semaphore j times knows that j minus its first value releases have happened. A thread must
// have made those releases that all other threads together cannot have made.
void Meetings::join_semaphores(Steps& steps) const {
  const auto count = [](const PerThread& all) {
    std::int64_t total = 0;
    for (const auto& [thread, some] : all) total += static_cast<std::int64_t>(some.size());
    return total;
  };
  for (const auto& [key, acquirers] : acquires_) {
    const auto found = releases_.find(key);
    const auto released = found == releases_.end() ? PerThread{} : found->second;
    const std::int64_t first = plan_.gpus[at(key.first)].semaphores[at(key.second)];
    const auto total = count(released), wanted = count(acquirers);
    if (wanted - first > total) {
      invalid(place(key.first) + ": semaphore " + std::to_string(key.second) + " is acquired " +
              std::to_string(wanted) + " times, but starts at " + std::to_string(first) +
              " and is released " + std::to_string(total) + " times");
    }
    for (const auto& [acquirer, acquires] : acquirers) {
      for (std::size_t j = 0; j < acquires.size(); ++j) {
        for (const auto& [releaser, releases] : released) {
          const auto others = total - static_cast<std::int64_t>(releases.size());
          const auto sure = static_cast<std::int64_t>(j) + 1 - first - others;
          if (sure > 0) steps.waits.emplace_back(acquires[j], releases[at(sure) - 1]);
        }
      }
    }
  }
}

// The first threadblock leaves when all have arrived; the others leave after it.
void Meetings::join_barriers(Steps& steps) const {
  for (const auto& [key, threads] : barriers_) {
    for (std::size_t round = 0;; ++round) {
      std::vector<const Coming*> present;
      for (const auto& [thread, comings] : threads) {
        if (comings.size() > round) present.push_back(&comings[round]);
      }
      if (present.empty()) break;
      for (const auto* one : present) {
        if (at(one->expected) != present.size()) {
          invalid(one->where + ": the field num_threadblocks is " + std::to_string(one->expected) +
                  ", but " + std::to_string(present.size()) + " threadblocks enter barrier " +
                  std::to_string(key.second) + " of gpu " + std::to_string(key.first));
        }
        if (one == present.front()) continue;
        steps.waits.emplace_back(present.front()->comes + 1, one->comes);
        steps.waits.emplace_back(one->comes + 1, present.front()->comes + 1);
      }
    }
  }
}

void Meetings::join_packets(Steps& steps) const {
  for (const auto& read : reads_) {
    for (auto slot = read.first_slot; slot < read.first_slot + read.slots; ++slot) {
      const auto found = packets_.find(slot);
      if (found == packets_.end()) invalid(read.where + ": reads packets that are never written");
      if (found->second != read.step) steps.waits.emplace_back(read.step, found->second);
    }
  }
}

}  // namespace tacos::mscclpp
