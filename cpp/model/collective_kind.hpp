// The kinds of collectives, one record each. Everything that depends on a kind reads its record: the
// number of chunks, the NPUs that hold them, their sizes, and the reverse kind.
//
// A kind that is defined by a group and a size is a new record here. A kind whose chunks are listed one
// by one needs no record: it is a `custom` part with a name (CollectivePart::name).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tacos {

enum class CollectiveKind : std::uint8_t {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  all_to_all_v,
  broadcast,
  reduce,
  gather,
  scatter,
  send_recv,
  custom,
};

// The unit that is divided into c chunks; n is the number of members.
enum class Unit : std::uint8_t {
  member,  // member i's part of the buffer: chunk i·c + k
  share,   // the buffer, in n·c pieces: chunk x, whose nominal owner is member x/c
  pair,    // the block from member i to member j: chunk (i·n + j)·c + k
  buffer,  // the whole buffer: chunk k
  row,     // a row of the part's columns: chunk row·c + k
};

// The NPUs at one end of a chunk.
enum class Ends : std::uint8_t {
  owner,   // member i of Unit::member and Unit::pair
  peer,    // member j of Unit::pair
  root,    // the root
  group,   // all members
  listed,  // the NPUs that the row lists
};

// nccl-tests' busbw / algbw.
enum class BusFactor : std::uint8_t { undefined, one, others, twice_others };

struct KindTraits {
  CollectiveKind kind;
  std::string_view name;
  Unit unit;
  Ends inputs, outputs;
  bool reduces;  // whether a chunk's value is the sum of its inputs; listed: column `reduces`
  bool even;     // whether the size alone determines the size of each chunk
  CollectiveKind reverse;  // with inputs and outputs exchanged
  BusFactor bus;

  constexpr bool listed() const { return unit == Unit::row; }
  constexpr bool rooted() const { return inputs == Ends::root || outputs == Ends::root; }
  constexpr bool per_pair() const { return unit == Unit::pair; }
  // Whether each chunk goes to, or comes from, the whole group.
  constexpr bool spreads() const { return inputs == Ends::group || outputs == Ends::group; }
  // Whether chunks are first collected from the whole group and then spread to all of it.
  constexpr bool two_phases() const { return inputs == Ends::group && outputs == Ends::group; }
  // Whether all members do the same, with equal parts.
  constexpr bool uniform() const { return even && !rooted(); }
  // Whether a member's buffer is the whole one or only its own part.
  constexpr bool whole_input() const { return unit != Unit::member || inputs != Ends::owner; }
  constexpr bool whole_output() const { return unit != Unit::member || outputs != Ends::owner; }
};

inline constexpr std::array<KindTraits, 11> kKinds = [] {
  using enum CollectiveKind;
  using enum Ends;
  using B = BusFactor;
  using U = Unit;
  constexpr bool sums = true, copies = false, even = true, uneven = false;
  return std::array<KindTraits, 11>{{
      {all_gather, "all_gather", U::member, owner, group, copies, even, reduce_scatter, B::others},
      {reduce_scatter, "reduce_scatter", U::member, group, owner, sums, even, all_gather,
       B::others},
      {all_reduce, "all_reduce", U::share, group, group, sums, even, all_reduce, B::twice_others},
      {all_to_all, "all_to_all", U::pair, owner, peer, copies, even, all_to_all, B::others},
      {all_to_all_v, "all_to_all_v", U::pair, owner, peer, copies, uneven, all_to_all_v,
       B::undefined},
      {broadcast, "broadcast", U::buffer, root, group, copies, even, reduce, B::one},
      {reduce, "reduce", U::buffer, group, root, sums, even, broadcast, B::one},
      {gather, "gather", U::member, owner, root, copies, even, scatter, B::others},
      {scatter, "scatter", U::member, root, owner, copies, even, gather, B::others},
      {send_recv, "send_recv", U::row, listed, listed, copies, uneven, send_recv, B::one},
      {custom, "custom", U::row, listed, listed, copies, uneven, custom, B::undefined},
  }};
}();

static_assert([] {
  for (std::size_t i = 0; i < kKinds.size(); ++i) {
    if (static_cast<std::size_t>(kKinds[i].kind) != i) return false;
  }
  return true;
}());

constexpr const KindTraits& traits(CollectiveKind kind) {
  return kKinds[static_cast<std::size_t>(kind)];
}

// The record of a name such as "all_gather", or nullptr.
const KindTraits* find_kind(std::string_view name);
CollectiveKind collective_kind(std::string_view name);  // throws std::invalid_argument

// The name as messages write it: "all-gather".
std::string label_of(std::string_view name);

double bus_factor(BusFactor factor, double members);

}  // namespace tacos
