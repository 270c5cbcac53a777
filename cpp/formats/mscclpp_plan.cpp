#include "formats/mscclpp_plan.hpp"

#include <algorithm>
#include <limits>

#include "formats/json.hpp"

namespace tacos::mscclpp {

std::string place(std::int64_t gpu, std::int64_t block, std::int64_t op, std::int64_t inner) {
  std::string words = "gpu " + std::to_string(gpu);
  if (block >= 0) words += ", threadblock " + std::to_string(block);
  if (op >= 0) words += ", op " + std::to_string(op);
  if (inner >= 0) words += ", inner op " + std::to_string(inner);
  return words;
}

namespace {

using Text = std::string_view;
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::array<Text, 3> kBufferNames{"i", "o", "s"};
constexpr std::array<Text, 3> kSums{"sum", "min", "max"};

class Decoder {
 public:
  explicit Decoder(Text text) : json_(text) {}

  ExecutionPlan run() {
    json_.list([&] {
      ++gpu_;
      plan_.gpus.push_back(gpu());
      block_ = -1;
    });
    return std::move(plan_);
  }

 private:
  // --- words and numbers

  [[noreturn]] void fail(const std::string& what) const {
    invalid(place(gpu_, block_, op_, inner_) + ": " + what);
  }
  [[noreturn]] void refuse(Text field, const std::string& allowed) {
    fail("the field " + std::string(field) + " is " + json_.excerpt() + "; " + allowed);
  }

  template <typename Read>
  void object(Text field, const Read& read) {
    if (json_.peek() != '{') refuse(field, "it must be an object");
    json_.object(read);
  }
  template <typename Read>
  void list(Text field, const Read& read) {
    if (json_.peek() != '[') refuse(field, "it must be a list");
    json_.list(read);
  }
  std::int32_t whole(Text field, std::int32_t least = 0, std::int32_t most = kMost) {
    const auto value = json_.number();
    if (!value) refuse(field, "it must be a whole number");
    if (*value < least || *value > most) {
      fail("the field " + std::string(field) + " is " + std::to_string(*value) + "; it must be " +
           std::to_string(least) + " to " + std::to_string(most));
    }
    return static_cast<std::int32_t>(*value);
  }
  template <std::size_t N>
  std::size_t word(Text field, const std::array<Text, N>& known, std::size_t allowed = N) {
    if (json_.peek() != '"') refuse(field, "it must be a string");
    auto after = json_;
    const auto text = after.string();
    const auto end = known.begin() + static_cast<std::ptrdiff_t>(allowed);
    const auto found = std::find(known.begin(), end, text);
    if (found == end) {
      std::string words;
      for (auto name = known.begin(); name != end; ++name) {
        words += (words.empty() ? "" : ", ") + std::string(*name);
      }
      refuse(field, "it must be one of " + words);
    }
    json_ = after;
    return static_cast<std::size_t>(found - known.begin());
  }
  Kind kind(Text field, std::size_t allowed) {
    return static_cast<Kind>(word(field, kKindNames, allowed));
  }
  Buffer buffer(Text field) { return static_cast<Buffer>(word(field, kBufferNames)); }
  Range numbers(Text field) {
    const auto begin = plan_.numbers.size();
    list(field, [&] { plan_.numbers.push_back(whole(field)); });
    return {begin, plan_.numbers.size()};
  }
  void need(bool there, Text field, Text of = "") const {
    if (there) return;
    fail((of.empty() ? "the field " : std::string(of) + " has no field ") + std::string(field) +
         (of.empty() ? " is missing" : ""));
  }

  // --- what a plan is made of

  Range pieces(Text field) {
    const auto begin = plan_.pieces.size();
    list(field, [&] {
      Piece piece;
      object(field, [&](Text name) {
        if (json_.null()) return;
        if (name == "index") {
          piece.index = whole(name);
        } else if (name == "size") {
          piece.size = whole(name, 1);
        } else if (name == "type") {
          piece.buffer = buffer(name);
        } else if (name == "buffer_id") {
          piece.remote = whole(name);
        } else if (name == "switch_channel_id") {
          piece.channel = whole(name);
        } else {
          json_.skip();
        }
      });
      need(piece.index >= 0, "index", field);
      need(piece.size >= 0, "size", field);
      plan_.pieces.push_back(piece);
    });
    return {begin, plan_.pieces.size()};
  }

  void group(Op& op) {
    op.part = -1;
    object("tbg_info", [&](Text name) {
      if (name == "tb_id") {
        op.part = whole(name);
      } else if (name == "tbg_size") {
        op.parts = whole(name, 1);
      } else {
        json_.skip();
      }
    });
    need(op.part >= 0, "tb_id", "the field tbg_info");
    need(op.parts > 0, "tbg_size", "the field tbg_info");
  }

  void rounds(Op& op) {
    bool has_unit = false;
    object("iter_context", [&](Text name) {
      if (name == "unit_size") {
        has_unit = whole(name, 1) > 0;
      } else if (name == "num_chunks") {
        op.round_chunks = whole(name, 1);
      } else {
        json_.skip();
      }
    });
    need(has_unit, "unit_size", "the field iter_context");
    need(op.round_chunks > 0, "num_chunks", "the field iter_context");
  }

  // A pipeline is stored before the operations that it contains.
  void op() {
    const auto at = plan_.ops.size();
    Op op;
    op.outer = op_;
    op.inner = inner_;
    plan_.ops.push_back(op);
    bool named = false;
    object("ops", [&](Text name) {
      if (json_.null()) return;
      if (name == "name") {
        op.name = static_cast<OpName>(word(name, kOpNames));
        named = true;
      } else if (name == "src_buff") {
        op.sources = pieces(name);
      } else if (name == "dst_buff") {
        op.targets = pieces(name);
      } else if (name == "channel_type") {
        op.kind = kind(name, 4);
      } else if (name == "channel_ids") {
        op.channels = numbers(name);
      } else if (name == "semaphore_ids") {
        op.semaphores = numbers(name);
      } else if (name == "barrier_id") {
        op.barrier = whole(name, 0, kMostBarriers - 1);
      } else if (name == "num_threadblocks") {
        op.threadblocks = whole(name);
      } else if (name == "tbg_info") {
        group(op);
      } else if (name == "iter_context") {
        rounds(op);
      } else if (name == "reduce_op") {
        word(name, kSums);
      } else if (name == "ops") {
        list(name, [&] {
          if (op.inner >= 0) fail("a pipeline must not contain another pipeline");
          ++inner_;
          this->op();
        });
        inner_ = op.inner;
      } else {
        json_.skip();
      }
    });
    need(named, "name");
    plan_.ops[at] = op;
  }

  Block block() {
    Block block;
    bool has_id = false, has_ops = false;
    object("threadblocks", [&](Text name) {
      if (name == "id") {
        const auto id = whole(name);
        if (id != block_) {
          fail("the field id is " + std::to_string(id) + "; it must be " + std::to_string(block_) +
               ", its position in threadblocks");
        }
        has_id = true;
      } else if (name == "ops") {
        has_ops = true;
        block.ops.begin = plan_.ops.size();
        list(name, [&] {
          ++op_;
          op();
        });
        block.ops.end = plan_.ops.size();
        op_ = -1;
      } else if (name == "channels") {
        block.channels = listed(name, "channel_type", 3, "channel_ids");
      } else if (name == "remote_buffer_refs") {
        block.remote = listed(name, "access_channel_type", 2, "remote_buffer_ids");
      } else {
        json_.skip();
      }
    });
    need(has_id, "id");
    need(has_ops, "ops");
    return block;
  }

  std::vector<Numbers> listed(Text field, Text kind_field, std::size_t kinds, Text ids) {
    std::vector<Numbers> found;
    list(field, [&] {
      Numbers some;
      bool has_ids = false;
      object(field, [&](Text name) {
        if (name == kind_field) {
          some.kind = kind(name, kinds);
        } else if (name == ids) {
          some.numbers = numbers(name);
          has_ids = true;
        } else {
          json_.skip();
        }
      });
      need(some.kind != Kind::none, kind_field, field);
      need(has_ids, ids, field);
      found.push_back(some);
    });
    return found;
  }

  Channel channel() {
    Channel channel;
    object("channels", [&](Text name) {
      if (json_.null()) return;
      if (name == "channel_type") {
        channel.kind = kind(name, 3);
      } else if (name == "connected_to") {
        channel.peers = numbers(name);
      } else if (name == "buffer_type" || name == "buff") {  // the latter in older plans
        channel.buffer = buffer(name);
      } else if (name == "rank_groups") {
        channel.groups.clear();
        list(name, [&] {
          bool has_ranks = false;
          object("rank_groups", [&](Text field) {
            if (field == "ranks") {
              channel.groups.push_back(numbers(field));
              has_ranks = true;
            } else {
              json_.skip();
            }
          });
          need(has_ranks, "ranks", "an entry of rank_groups");
        });
      } else {
        json_.skip();
      }
    });
    need(channel.kind != Kind::none, "channel_type", "an entry of channels");
    return channel;
  }

  Remote remote() {
    Remote remote{-1, Buffer::none, {}};
    bool has_access = false;
    object("remote_buffers", [&](Text name) {
      if (name == "rank") {
        remote.rank = whole(name);
      } else if (name == "type") {
        remote.buffer = buffer(name);
      } else if (name == "access_channel_types") {
        list(name, [&] { remote.access[static_cast<std::size_t>(kind(name, 2))] = true; });
        has_access = true;
      } else {
        json_.skip();
      }
    });
    need(remote.rank >= 0, "rank", "an entry of remote_buffers");
    need(remote.buffer != Buffer::none, "type", "an entry of remote_buffers");
    need(has_access, "access_channel_types", "an entry of remote_buffers");
    return remote;
  }

  std::int32_t semaphore() {
    std::int32_t value = -1;
    object("semaphores", [&](Text name) {
      if (name == "init_value") {
        value = whole(name);
      } else {
        json_.skip();
      }
    });
    need(value >= 0, "init_value", "an entry of semaphores");
    return value;
  }

  Gpu gpu() {
    Gpu gpu{-1, -1, -1, {}, {}, {}, {}};
    std::int32_t id = -1;
    bool has_blocks = false;
    object("gpus", [&](Text name) {
      if (name == "id") {
        id = whole(name);
        if (id != gpu_) {
          fail("the field id is " + std::to_string(id) + "; it must be " + std::to_string(gpu_) +
               ", its position in gpus");
        }
      } else if (name == "input_chunks") {
        gpu.input = whole(name);
      } else if (name == "output_chunks") {
        gpu.output = whole(name);
      } else if (name == "scratch_chunks") {
        gpu.scratch = whole(name);
      } else if (name == "channels") {
        gpu.channels.clear();
        list(name, [&] { gpu.channels.push_back(channel()); });
      } else if (name == "remote_buffers") {
        gpu.remote.clear();
        list(name, [&] { gpu.remote.push_back(remote()); });
      } else if (name == "semaphores") {
        gpu.semaphores.clear();
        list(name, [&] { gpu.semaphores.push_back(semaphore()); });
      } else if (name == "threadblocks") {
        has_blocks = true;
        gpu.blocks.clear();
        list(name, [&] {
          ++block_;
          gpu.blocks.push_back(block());
        });
        block_ = -1;
      } else {
        json_.skip();
      }
    });
    need(id >= 0, "id");
    need(gpu.input >= 0, "input_chunks");
    need(gpu.output >= 0, "output_chunks");
    need(gpu.scratch >= 0, "scratch_chunks");
    need(has_blocks, "threadblocks");
    return gpu;
  }

  json::Reader json_;
  ExecutionPlan plan_;
  std::int32_t gpu_ = -1, block_ = -1, op_ = -1, inner_ = -1;
};

}  // namespace

ExecutionPlan decoded(std::string_view gpus) { return Decoder(gpus).run(); }

}  // namespace tacos::mscclpp
