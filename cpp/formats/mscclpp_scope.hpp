// The names that operations of an MSCCL++ plan use: the buffers, channels and peers of the GPU and the threadblock that are
// being translated.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/mscclpp_plan.hpp"
#include "model/program.hpp"
#include "support/error.hpp"
#include "support/index.hpp"

namespace tacos::mscclpp {

struct Place {
  NodeId rank;
  Buffer buffer;
  std::int64_t slot;
  bool operator==(const Place&) const = default;
};

struct Group {  // ranks behind a switch
  std::span<const std::int32_t> ranks;
  Buffer buffer;
};

class PlanScope {
 protected:
  PlanScope(const ExecutionPlan& plan, CollectiveKind kind) : plan_(plan), kind_(kind) {}

  NodeId ranks() const { return static_cast<NodeId>(plan_.gpus.size()); }
  std::string where() const {
    return place(rank_, block_, op_ ? op_->outer : -1, op_ ? op_->inner : -1);
  }
  [[noreturn]] void fail(const std::string& what) const { invalid(where() + ": " + what); }
  [[noreturn]] void fail_field(std::string_view field, std::int64_t value,
                               const std::string& rest) const {
    fail("the field " + std::string(field) + " has the entry " + std::to_string(value) + "; " +
         rest);
  }

  // --- what the plan is about

  void size_up(std::int64_t most_slots) {
    if (plan_.gpus.empty()) invalid("the field gpus is empty; a plan needs at least one GPU");
    for (const auto& op : plan_.ops) {
      if (op.parts == 0) continue;
      parts_ = std::lcm(parts_, std::int64_t{op.parts});
      if (parts_ > kMostParts) {
        invalid("the fields tbg_size cut a chunk into " + std::to_string(parts_) +
                " or more parts; the limit is " + std::to_string(kMostParts));
      }
    }
    std::int64_t total = 0, chunks = 0;
    const std::int64_t n = ranks();
    const bool gathers = !traits(kind_).whole_input();
    const bool scatters = !traits(kind_).whole_output();
    for (const auto& gpu : plan_.gpus) {
      total += std::int64_t{gpu.input} + gpu.output + gpu.scratch;
      chunks = std::max({chunks, gpu.input * (gathers ? n : 1), gpu.output * (scatters ? n : 1)});
    }
    if (total > most_slots / parts_) {
      invalid("the gpus have " + std::to_string(total) +
              " chunks, far more than the operations can fill");
    }
    if (chunks < 1 || (traits(kind_).unit != Unit::share && chunks % n != 0)) {
      invalid("the gpus have " + std::to_string(chunks) +
              " chunks; the collective needs a multiple of " + std::to_string(n));
    }
    if (chunks * parts_ > most_slots) {
      invalid("the gpus have " + std::to_string(chunks) +
              " chunks, far more than the operations can fill");
    }
    const auto input = gathers ? chunks / n : chunks, output = scatters ? chunks / n : chunks;
    for (std::size_t r = 0; r < plan_.gpus.size(); ++r) {
      const auto& gpu = plan_.gpus[r];
      check_chunks(r, "input_chunks", gpu.input, input);
      check_chunks(r, "output_chunks", gpu.output, output);
      check_ops(r);
      slots_.push_back({input * parts_, output * parts_, gpu.scratch * parts_});
      first_slot_.push_back(r == 0 ? 0
                                   : first_slot_.back() + std::accumulate(slots_[r - 1].begin(),
                                                                          slots_[r - 1].end(),
                                                                          std::int64_t{0}));
    }
    slots_of_all_ = chunks * parts_;
    spare_slots_ = most_slots - total * parts_;
    piece_ = chunks / n * parts_;
  }

  static void check_chunks(std::size_t gpu, std::string_view field, std::int64_t found,
                           std::int64_t wanted) {
    if (found == 0 || found == wanted) return;
    invalid(place(static_cast<std::int64_t>(gpu)) + ": the field " + std::string(field) + " is " +
            std::to_string(found) + "; it must be 0 or " + std::to_string(wanted));
  }

  void check_ops(std::size_t gpu) const {
    const auto& blocks = plan_.gpus[gpu].blocks;
    for (std::size_t t = 0; t < blocks.size(); ++t) {
      if (blocks[t].ops.size() <= at(kMostOps)) continue;
      invalid(place(static_cast<std::int64_t>(gpu), static_cast<std::int64_t>(t)) + ": " +
              std::to_string(blocks[t].ops.size()) + " operations; the executor takes at most " +
              std::to_string(kMostOps));
    }
  }

  // --- what a GPU and a threadblock know

  void enter_gpu() {
    const auto& gpu = plan_.gpus[at(rank_)];
    groups_.clear();
    for (auto& some : peers_) some.clear();
    for (const auto& channel : gpu.channels) {
      if (channel.kind != Kind::switched) {
        for (const auto peer : numbers(channel.peers)) {
          check_peer("connected_to", peer);
          peers_[at(channel.kind)].push_back(peer);
        }
        continue;
      }
      if (channel.buffer == Buffer::none) fail("a switch channel needs the field buffer_type");
      for (const auto& range : channel.groups) {
        const auto members = numbers(range);
        const std::set<std::int32_t> different(members.begin(), members.end());
        if (different.size() != members.size() || !different.contains(rank_) ||
            *different.rbegin() >= ranks()) {
          fail("the field ranks must list gpu " + std::to_string(rank_) +
               " and other gpus of the plan, each once");
        }
        groups_.push_back({members, channel.buffer});
      }
    }
    for (const auto& buffer : gpu.remote) check_peer("rank", buffer.rank);
  }

  void check_peer(std::string_view field, std::int32_t peer) const {
    if (peer >= ranks() || peer == rank_) {
      fail_field(field, peer, "it must be another of the " + std::to_string(ranks()) + " gpus");
    }
  }

  void enter_block(const Block& block) {
    const auto& gpu = plan_.gpus[at(rank_)];
    for (auto& some : channels_) some.clear();
    for (auto& some : remote_) some.clear();
    const std::array<std::size_t, 3> there{peers_[0].size(), peers_[1].size(), groups_.size()};
    for (const auto& some : block.channels) {
      for (const auto number : numbers(some.numbers)) {
        if (at(number) >= there[at(some.kind)]) {
          fail_field("channel_ids", number,
                     "the gpu has " + std::to_string(there[at(some.kind)]) + " " +
                         std::string(kKindNames[at(some.kind)]) + " channels");
        }
        channels_[at(some.kind)].push_back(number);
      }
    }
    for (const auto& some : block.remote) {
      for (const auto number : numbers(some.numbers)) {
        if (at(number) >= gpu.remote.size()) {
          fail_field("remote_buffer_ids", number,
                     "the gpu has " + std::to_string(gpu.remote.size()) + " remote buffers");
        }
        const auto& buffer = gpu.remote[at(number)];
        if (!buffer.access[at(some.kind)]) {
          fail("remote buffer " + std::to_string(number) + " is used by " +
               std::string(kKindNames[at(some.kind)]) +
               " channels; its field access_channel_types must list them");
        }
        remote_[at(some.kind)].push_back(&buffer);
      }
    }
    for (std::size_t kind = 0; kind < channels_.size(); ++kind) check_many(kind, channels_[kind]);
    for (std::size_t kind = 0; kind < remote_.size(); ++kind) check_many(kind, remote_[kind]);
  }

  template <typename Values>
  void check_many(std::size_t kind, const Values& values) const {
    if (values.size() <= at(kMostChannels)) return;
    fail(std::to_string(values.size()) + " " + std::string(kKindNames[kind]) +
         " channels or remote buffers; the executor takes at most " +
         std::to_string(kMostChannels));
  }

  // --- what an operation names

  std::span<const std::int32_t> numbers(Range range) const {
    return std::span(plan_.numbers).subspan(range.begin, range.size());
  }
  std::span<const Piece> pieces(Range range) const {
    return std::span(plan_.pieces).subspan(range.begin, range.size());
  }
  std::span<const Piece> sources() const { return pieces(op_->sources); }
  std::span<const Piece> targets() const { return pieces(op_->targets); }

  // A piece of a buffer, or this threadblock's share of it: `count()` slots.
  Place within(NodeId rank, Buffer buffer, const Piece& piece) const {
    const auto slots = slots_[at(rank)][at(buffer)] / parts_;
    if (std::int64_t{piece.index} + piece.size > slots) {
      fail("the field index is " + std::to_string(piece.index) + " and the size " +
           std::to_string(piece.size) + "; the " + std::string(kBufferWords[at(buffer)]) +
           " buffer of gpu " + std::to_string(rank) + " has " + std::to_string(slots) + " chunks");
    }
    auto slot = piece.index * parts_;
    if (op_->parts > 0) slot += op_->part * (piece.size * parts_ / op_->parts);
    return {rank, buffer, slot};
  }

  std::int32_t count(const Piece& piece) const {
    if (op_->parts > 0 && op_->part >= op_->parts) {
      fail("the field tb_id is " + std::to_string(op_->part) + "; it must be below tbg_size, " +
           std::to_string(op_->parts));
    }
    return static_cast<std::int32_t>(piece.size * parts_ / std::max(op_->parts, 1));
  }

  Place local(const Piece& piece, std::string_view field) const {
    if (piece.buffer == Buffer::none)
      fail("an entry of " + std::string(field) + " needs the field type");
    return within(rank_, piece.buffer, piece);
  }

  Place away(const Piece& piece, std::string_view field) const {
    if (piece.remote < 0) fail("an entry of " + std::string(field) + " needs the field buffer_id");
    const auto& known = remote_[at(peer_kind())];
    if (at(piece.remote) >= known.size()) {
      fail("the field buffer_id is " + std::to_string(piece.remote) + "; the threadblock has " +
           std::to_string(known.size()) + " remote buffers");
    }
    const auto& buffer = *known[at(piece.remote)];
    return within(buffer.rank, buffer.buffer, piece);
  }

  Kind peer_kind() const {
    if (op_->kind == Kind::memory || op_->kind == Kind::port) return op_->kind;
    fail("the field channel_type is " + std::string(kKindNames[at(op_->kind)]) +
         "; it must be memory or port");
  }

  // The number, within the GPU, of the operation's i-th channel.
  std::int32_t channel(std::size_t i) const {
    const auto& known = channels_[at(peer_kind())];
    const auto given = numbers(op_->channels);
    if (i >= given.size()) {
      fail("the field channel_ids has " + std::to_string(given.size()) +
           " entries; the operation needs " + std::to_string(i + 1));
    }
    if (at(given[i]) >= known.size()) {
      fail_field("channel_ids", given[i],
                 "the threadblock has " + std::to_string(known.size()) + " channels");
    }
    return known[at(given[i])];
  }

  const Group& group(const Piece& piece) const {
    if (piece.channel < 0) fail("a buffer behind a switch needs the field switch_channel_id");
    const auto& known = channels_[at(Kind::switched)];
    if (at(piece.channel) >= known.size()) {
      fail("the field switch_channel_id is " + std::to_string(piece.channel) +
           "; the threadblock has " + std::to_string(known.size()) + " switch channels");
    }
    return groups_[at(known[at(piece.channel)])];
  }

  const ExecutionPlan& plan_;
  const CollectiveKind kind_;
  std::int64_t parts_ = 1;         // parts per chunk, so that a group's shares are whole parts
  std::int64_t slots_of_all_ = 0;  // slots of the whole collective
  std::int64_t piece_ = 0;         // slots of one rank's part
  std::int64_t spare_slots_ = 0;   // slots that may still be added
  std::vector<std::array<std::int64_t, 3>> slots_;  // per rank and buffer
  std::vector<std::int64_t> first_slot_;            // per rank, counted over all ranks

  NodeId rank_ = 0;
  std::int32_t block_ = -1;
  const Op* op_ = nullptr;
  std::array<std::vector<NodeId>, 2> peers_;  // peer of each channel of the GPU
  std::vector<Group> groups_;
  // The threadblock's channels, as numbers of the GPU.
  std::array<std::vector<std::int32_t>, 3> channels_;
  std::array<std::vector<const Remote*>, 2> remote_;

 private:
  static constexpr std::int64_t kMostParts = 64;
  static constexpr std::array<std::string_view, 4> kBufferWords{"input", "output", "scratch",
                                                                "none"};
};

}  // namespace tacos::mscclpp
