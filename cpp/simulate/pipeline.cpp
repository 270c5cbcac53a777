#include "simulate/pipeline.hpp"

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <string>

namespace tacos {

namespace {

struct StagePass {
  std::int32_t chunk, microbatch;
  Pass pass;
};

void check(const Pipeline& p) {
  if (p.stages < 1 || p.chunks < 1 || p.microbatches < 1) {
    throw std::invalid_argument("a pipeline needs at least one stage, chunk and micro-batch");
  }
  const auto parts = static_cast<std::size_t>(p.stages) * static_cast<std::size_t>(p.chunks);
  for (const auto* column : {&p.forward, &p.backward, &p.weight, &p.send_forward, &p.send_backward,
                             &p.ready_start, &p.ready_end}) {
    if (column->size() != parts) {
      throw std::invalid_argument("a column has " + std::to_string(column->size()) +
                                  " entries; the pipeline has " + std::to_string(parts) +
                                  " virtual stages");
    }
    if (std::any_of(column->begin(), column->end(), [](std::int64_t value) { return value < 0; })) {
      throw std::invalid_argument("durations must not be negative");
    }
  }
  const auto passes = static_cast<std::size_t>(p.stages) * static_cast<std::size_t>(p.microbatches);
  if (!p.stretch_ppm.empty() && p.stretch_ppm.size() != passes) {
    throw std::invalid_argument("stretch must have an entry per stage and micro-batch");
  }
  if (p.rule == PipelineRule::gpipe && p.chunks > 1) {
    throw std::invalid_argument("GPipe has one chunk per stage");
  }
}

// The number of micro-batches in the first group: the number of stages, plus those that would not fill another group.
// A group with fewer micro-batches than stages can deadlock.
std::int32_t first_group(const Pipeline& p) {
  return p.microbatches < 2 * p.stages ? p.microbatches : p.stages + p.microbatches % p.stages;
}

// Passes of a stage in order: micro-batches in groups of about `stages`, each group chunk by chunk.
std::vector<StagePass> passes(const Pipeline& p, Pass pass) {
  std::vector<StagePass> found;
  found.reserve(static_cast<std::size_t>(p.microbatches) * static_cast<std::size_t>(p.chunks));
  for (std::int32_t begin = 0, end = first_group(p); begin < p.microbatches;
       begin = end, end += p.stages) {
    for (std::int32_t i = 0; i < p.chunks; ++i) {
      const std::int32_t chunk = pass == Pass::forward ? i : p.chunks - 1 - i;
      for (std::int32_t microbatch = begin; microbatch < end; ++microbatch) {
        found.push_back({chunk, microbatch, pass});
      }
    }
  }
  return found;
}

std::vector<StagePass> order_of(const Pipeline& p, std::int32_t stage) {
  const std::vector<StagePass> ahead = passes(p, Pass::forward);
  std::vector<StagePass> back = passes(p, Pass::backward);
  const std::size_t count = ahead.size();
  std::size_t warm_up = count;
  if (p.rule == PipelineRule::gpipe) {
    std::reverse(back.begin(), back.end());
  } else if (p.chunks == 1) {
    warm_up = std::min<std::size_t>(count, static_cast<std::size_t>(p.stages - 1 - stage));
  } else if (p.microbatches > p.stages) {
    const std::int32_t needed = 2 * (p.stages - stage - 1) + (p.chunks - 1) * first_group(p);
    warm_up = std::min<std::size_t>(count, static_cast<std::size_t>(needed));
  }
  std::vector<StagePass> order(ahead.begin(), ahead.begin() + static_cast<std::ptrdiff_t>(warm_up));
  order.reserve(2 * count);
  for (std::size_t i = 0; i < count; ++i) {
    if (warm_up + i < count) {
      order.push_back(ahead[warm_up + i]);
    }
    order.push_back(back[i]);
  }
  return order;
}

class Simulation {
 public:
  explicit Simulation(const Pipeline& pipeline)
      : p_(pipeline),
        cells_(static_cast<std::size_t>(p_.stages) * static_cast<std::size_t>(p_.chunks) *
               static_cast<std::size_t>(p_.microbatches)),
        forward_at_(cells_, -1),
        backward_at_(cells_, -1),
        free_(static_cast<std::size_t>(p_.stages), 0),
        next_(static_cast<std::size_t>(p_.stages), 0),
        later_(static_cast<std::size_t>(p_.stages)),
        held_(static_cast<std::size_t>(p_.stages), 0),
        rows_(static_cast<std::size_t>(p_.stages)) {
    for (std::int32_t stage = 0; stage < p_.stages; ++stage) {
      orders_.push_back(order_of(p_, stage));
    }
    most_.assign(static_cast<std::size_t>(p_.stages), 0);
  }

  PipelineTimes run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::int32_t stage = 0; stage < p_.stages; ++stage) {
        while (advance(stage)) {
          moved = true;
        }
      }
    }
    for (std::int32_t stage = 0; stage < p_.stages; ++stage) {
      const auto s = static_cast<std::size_t>(stage);
      if (next_[s] < orders_[s].size()) {
        throw std::invalid_argument("the passes of the pipeline wait for each other");
      }
      while (!later_[s].empty()) {
        weigh(stage);
      }
    }
    return collected();
  }

 private:
  struct Row {
    StagePass entry;
    std::int64_t start, end;
  };

  std::size_t part(std::int32_t stage, std::int32_t chunk) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(p_.chunks) +
           static_cast<std::size_t>(chunk);
  }

  std::size_t cell(std::int32_t virtual_stage, std::int32_t microbatch) const {
    return static_cast<std::size_t>(virtual_stage) * static_cast<std::size_t>(p_.microbatches) +
           static_cast<std::size_t>(microbatch);
  }

  std::int64_t stretched(std::int64_t duration, std::int32_t stage, std::int32_t microbatch) const {
    if (p_.stretch_ppm.empty()) {
      return duration;
    }
    const auto at = static_cast<std::size_t>(stage) * static_cast<std::size_t>(p_.microbatches) +
                    static_cast<std::size_t>(microbatch);
    // Computed in two parts, since a duration times a million may overflow.
    const std::int64_t ppm = p_.stretch_ppm[at];
    return duration + duration / 1'000'000 * ppm + duration % 1'000'000 * ppm / 1'000'000;
  }

  // Computes the gradients of weights that have waited longest.
  void weigh(std::int32_t stage) {
    const auto s = static_cast<std::size_t>(stage);
    const StagePass entry = later_[s].front();
    later_[s].pop_front();
    const std::int64_t start = free_[s];
    const std::int64_t end =
        start + stretched(p_.weight[part(stage, entry.chunk)], stage, entry.microbatch);
    rows_[s].push_back({{entry.chunk, entry.microbatch, Pass::weight}, start, end});
    free_[s] = end;
  }

  // Runs the next pass of a stage; returns false if its input has not been computed.
  bool advance(std::int32_t stage) {
    const auto s = static_cast<std::size_t>(stage);
    if (next_[s] == orders_[s].size()) {
      return false;
    }
    const StagePass entry = orders_[s][next_[s]];
    const std::int32_t place = entry.chunk * p_.stages + stage;
    const std::int32_t last = p_.stages * p_.chunks - 1;
    const std::size_t here = part(stage, entry.chunk);
    const bool ahead = entry.pass == Pass::forward;
    std::int64_t arrival = 0;
    if (ahead && place > 0) {
      arrival = forward_at_[cell(place - 1, entry.microbatch)];
    } else if (!ahead && place < last) {
      arrival = backward_at_[cell(place + 1, entry.microbatch)];
    }
    if (arrival < 0 || (!ahead && forward_at_[cell(place, entry.microbatch)] < 0)) {
      return false;
    }
    const bool first = ahead && entry.microbatch == 0;
    if (first) {
      arrival = std::max(arrival, p_.ready_start[here]);
    }
    while (!later_[s].empty() && free_[s] < arrival) {
      weigh(stage);
    }
    const bool split = p_.rule == PipelineRule::zero_bubble;
    const std::int64_t start = std::max(free_[s], arrival);
    std::int64_t duration =
        ahead ? p_.forward[here] : p_.backward[here] - (split ? p_.weight[here] : 0);
    std::int64_t end = start + stretched(duration, stage, entry.microbatch);
    if (first) {
      end = std::max(end, p_.ready_end[here]);
    }
    rows_[s].push_back({entry, start, end});
    const std::int64_t sending = ahead ? (place < last ? p_.send_forward[here] : 0)
                                       : (place > 0 ? p_.send_backward[here] : 0);
    (ahead ? forward_at_ : backward_at_)[cell(place, entry.microbatch)] = end + sending;
    free_[s] = p_.blocking ? end + sending : end;
    held_[s] += ahead ? 1 : -1;
    most_[s] = std::max(most_[s], held_[s]);
    if (!ahead && split) {
      later_[s].push_back(entry);
    }
    ++next_[s];
    return true;
  }

  PipelineTimes collected() const {
    PipelineTimes found;
    for (std::size_t s = 0; s < rows_.size(); ++s) {
      for (const Row& row : rows_[s]) {
        found.stage.push_back(static_cast<std::int32_t>(s));
        found.chunk.push_back(row.entry.chunk);
        found.microbatch.push_back(row.entry.microbatch);
        found.pass.push_back(static_cast<std::uint8_t>(row.entry.pass));
        found.start_ps.push_back(row.start);
        found.end_ps.push_back(row.end);
      }
    }
    found.in_flight = most_;
    return found;
  }

  const Pipeline& p_;
  std::size_t cells_;
  // When the result of a pass has arrived at the next virtual stage, or -1.
  std::vector<std::int64_t> forward_at_, backward_at_;
  std::vector<std::int64_t> free_;
  std::vector<std::size_t> next_;
  std::vector<std::deque<StagePass>> later_;
  std::vector<std::int32_t> held_, most_;
  std::vector<std::vector<StagePass>> orders_;
  std::vector<std::vector<Row>> rows_;
};

}  // namespace

PipelineTimes simulate_pipeline(const Pipeline& pipeline) {
  check(pipeline);
  return Simulation(pipeline).run();
}

}  // namespace tacos
