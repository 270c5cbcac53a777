#include "graph/max_flow.hpp"

#include <algorithm>

#include "support/index.hpp"

namespace tacos {

MaxFlow::MaxFlow(Node nodes, std::span<const Node> from, std::span<const Node> to)
    : begin_(at(nodes) + 1),
      edges_(2 * from.size()),
      forward_(from.size()),
      capacity_(from.size()) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    ++begin_[at(from[i]) + 1];
    ++begin_[at(to[i]) + 1];
  }
  for (std::size_t v = 1; v < begin_.size(); ++v) begin_[v] += begin_[v - 1];
  auto next = begin_;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto a = static_cast<std::int32_t>(next[at(from[i])]++);
    const auto b = static_cast<std::int32_t>(next[at(to[i])]++);
    edges_[at(a)] = {to[i], b};
    edges_[at(b)] = {from[i], a};
    forward_[i] = a;
  }
  left_.resize(edges_.size());
  level_.resize(at(nodes));
  next_.resize(at(nodes));
}

MaxFlow::Amount MaxFlow::run(Node source, Node sink, Amount limit) {
  source_ = source;
  sink_ = sink;
  std::fill(left_.begin(), left_.end(), 0);
  visits_ += forward_.size();
  for (std::size_t i = 0; i < forward_.size(); ++i) left_[at(forward_[i])] = capacity_[i];
  Amount flow = 0;
  while (flow < limit && find_levels()) {
    std::copy(begin_.begin(), begin_.end() - 1, next_.begin());
    while (flow < limit) {
      const Amount more = augment(limit - flow);
      if (more == 0) break;
      flow += more;
    }
  }
  return flow;
}

bool MaxFlow::find_levels() {
  std::fill(level_.begin(), level_.end(), -1);
  queue_.assign(1, sink_);
  level_[at(sink_)] = 0;
  for (std::size_t head = 0; head < queue_.size(); ++head) {
    const Node node = queue_[head];
    visits_ += at(begin_[at(node) + 1] - begin_[at(node)]);
    for (auto e = begin_[at(node)]; e < begin_[at(node) + 1]; ++e) {
      const Edge& edge = edges_[at(e)];
      if (level_[at(edge.to)] >= 0 || left_[at(edge.twin)] == 0) continue;
      level_[at(edge.to)] = level_[at(node)] + 1;
      if (edge.to == source_) return true;
      queue_.push_back(edge.to);
    }
  }
  return false;
}

// Finds another path of the current length, continuing the previous search.
MaxFlow::Amount MaxFlow::augment(Amount limit) {
  path_.clear();
  Node node = source_;
  while (node != sink_) {
    auto& e = next_[at(node)];
    const auto end = begin_[at(node) + 1];
    while (e < end && (left_[at(e)] == 0 || level_[at(edges_[at(e)].to)] != level_[at(node)] - 1)) {
      ++e;
    }
    if (e < end) {
      path_.push_back(static_cast<std::int32_t>(e));
      node = edges_[at(e)].to;
    } else if (path_.empty()) {
      return 0;
    } else {
      node = edges_[at(edges_[at(path_.back())].twin)].to;
      path_.pop_back();
      ++next_[at(node)];
    }
  }
  visits_ += 2 * path_.size();
  Amount flow = limit;
  for (const auto e : path_) flow = std::min(flow, left_[at(e)]);
  for (const auto e : path_) {
    left_[at(e)] -= flow;
    left_[at(edges_[at(e)].twin)] += flow;
  }
  return flow;
}

std::vector<std::uint8_t> MaxFlow::source_side(Amount slack) const {
  return side(source_, true, slack);
}

std::vector<std::uint8_t> MaxFlow::sink_side(Amount slack) const {
  return side(sink_, false, slack);
}

std::vector<std::uint8_t> MaxFlow::side(Node root, bool forward, Amount slack) const {
  std::vector<std::uint8_t> inside(level_.size());
  std::vector<Node> queue{root};
  inside[at(root)] = 1;
  for (std::size_t head = 0; head < queue.size(); ++head) {
    const Node node = queue[head];
    for (auto e = begin_[at(node)]; e < begin_[at(node) + 1]; ++e) {
      const Edge& edge = edges_[at(e)];
      const Amount left = left_[at(forward ? e : edge.twin)];
      if (left <= slack || inside[at(edge.to)]) continue;
      inside[at(edge.to)] = 1;
      queue.push_back(edge.to);
    }
  }
  return inside;
}

}  // namespace tacos
