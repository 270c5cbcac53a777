// Best-first search (Dijkstra's method): places are visited in the order of their keys, the lowest first. What the places
// are, which of them follow each other, and what a key means is up to the caller.
//
//     search.start(0, 0);
//     while (const auto node = search.next()) {
//       const Time time = search.key(*node);
//       for (const LinkId link : topology.out_links(*node))
//         search.offer(topology.dst(link), time + topology.latency(link), link);
//     }
//
// A place keeps the lowest key that was offered, with a mark that says how it was reached. Keys may be sums, maxima, numbers
// or pairs of numbers, such as a time and a number of hops: the searches are exact if a key that is offered from a place is
// not lower than that place's own, and if a lower key at a place never leads to a higher one behind it. If what follows also
// depends on the mark, as in a sum of latencies plus the slowest link, they are a heuristic.
//
// Sources keep their keys, whatever is offered. They may be added while the search goes on, so that a tree grows: each place
// that joins it becomes a source. If the keys of other places are no longer valid, restart() searches again from the sources.
//
// Ties: places with equal keys are visited in the order of their numbers, and of equal offers to a place the first one counts.
// So results do not depend on the heap. A place whose key was lowered is in the heap twice; its old entry is skipped.
//
// Cost: O(log m) for each of m offers that were accepted. The memory is kept for the next search, and clear() costs as much
// as the places that were reached.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/index.hpp"

namespace tacos {

// If it does not matter how places were reached.
struct NoMark {};

template <typename Key, typename Mark = std::int32_t>
class BestFirst {
 public:
  using Place = std::int32_t;

  explicit BestFirst(Place places) : labels_(at(places)) {}

  // Forgets everything.
  void clear() {
    for (const Place place : reached_) labels_[at(place)] = {};
    reached_.clear();
    heap_.clear();
  }

  // Forgets everything except the sources, from which the search starts again.
  void restart() {
    heap_.clear();
    std::erase_if(reached_, [&](Place place) {
      if (labels_[at(place)].source) {
        enter(place);
        return false;
      }
      labels_[at(place)] = {};
      return true;
    });
  }

  // Makes a place a source; if it was reached before, its key changes.
  void start(Place place, const Key& key) {
    if (!reached(place)) reached_.push_back(place);
    labels_[at(place)] = {key, {}, true};
    enter(place);
  }

  // Whether a place would accept a key.
  bool accepts(Place place, const Key& key) const {
    return key < labels_[at(place)].key && !labels_[at(place)].source;
  }

  // Offers a key; returns whether the place accepts it. If not `visited`, the place keeps the key, and next() leaves it out.
  bool offer(Place place, const Key& key, const Mark& mark = {}, bool visited = true) {
    ++offers_;
    if (!accepts(place, key)) return false;
    if (!reached(place)) reached_.push_back(place);
    labels_[at(place)].key = key;
    labels_[at(place)].mark = mark;
    if (visited) enter(place);
    return true;
  }

  // Visits the next place; none if all that were reached have been visited.
  std::optional<Place> next() {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      const auto [key, place] = heap_.back();
      heap_.pop_back();
      if (labels_[at(place)].key == key) return place;
    }
    return std::nullopt;
  }

  // The number of offers since the last call: the work of the search.
  std::size_t take_offers() { return std::exchange(offers_, 0); }

  // The places with a key, in the order in which they were reached.
  std::span<const Place> reached() const { return reached_; }
  bool reached(Place place) const { return labels_[at(place)].key != kUnreached; }
  bool source(Place place) const { return labels_[at(place)].source; }
  // Of a place that was reached; it has a mark if it is not a source.
  const Key& key(Place place) const { return labels_[at(place)].key; }
  const Mark& mark(Place place) const { return labels_[at(place)].mark; }

 private:
  // Above all keys.
  static constexpr Key kUnreached = [] {
    if constexpr (std::is_arithmetic_v<Key>) {
      return std::numeric_limits<Key>::max();
    } else {
      return Key{std::numeric_limits<typename Key::first_type>::max(),
                 std::numeric_limits<typename Key::second_type>::max()};
    }
  }();

  struct Label {
    Key key = kUnreached;
    [[no_unique_address]] Mark mark = {};
    bool source = false;
  };
  struct Entry {
    Key key;
    Place place;
    // The standard heaps have the highest entry on top.
    bool operator<(const Entry& other) const {
      return key != other.key ? other.key < key : other.place < place;
    }
  };

  void enter(Place place) {
    heap_.push_back({labels_[at(place)].key, place});
    std::push_heap(heap_.begin(), heap_.end());
  }

  std::vector<Label> labels_;  // of each place
  std::vector<Place> reached_;
  std::vector<Entry> heap_;
  std::size_t offers_ = 0;
};

}  // namespace tacos
