#include "simulate/astra_native.hpp"

#include <algorithm>
#include <bit>
#include <charconv>

#include "support/error.hpp"

namespace tacos::astra {

Implementation Implementation::parse(const std::string& name) {
  const bool whole = name.starts_with("one");
  std::string rest = whole ? name.substr(3) : name;
  if (whole && !rest.empty()) rest[0] = static_cast<char>(rest[0] - 'A' + 'a');
  if (rest == "ring") return {Algorithm::ring, -1, whole};
  if (rest == "halvingDoubling") return {Algorithm::halving_doubling, -1, whole};
  if (name == "doubleBinaryTree") return {Algorithm::double_binary_tree};
  if (rest == "direct") return {Algorithm::direct, -1, whole};
  if (rest.starts_with("direct")) {
    std::int32_t window = 0;
    const auto [end, error] = std::from_chars(rest.data() + 6, rest.data() + rest.size(), window);
    if (error == std::errc() && end == rest.data() + rest.size() && window > 0) {
      return {Algorithm::direct, window, whole};
    }
  }
  invalid("implementation is \"" + name +
          "\"; it must be one of ring, direct, direct4 (or another window), halvingDoubling, "
          "doubleBinaryTree, oneRing, oneDirect, oneHalvingDoubling");
}

std::int64_t PhaseSpec::bytes_after() const {
  if (implementation.algorithm == Algorithm::double_binary_tree) return bytes;
  if (comm == Comm::all_gather) return bytes * line.size;
  if (comm == Comm::reduce_scatter) return bytes / line.size;
  return bytes;
}

namespace {

// The common part of ring, direct and halving-doubling. Pieces are staged in rounds: `window` of them without a sum, then
// some with a sum. A piece that is ready is sent, and another is received in its place.
class RoundPhase : public Phase {
 public:
  RoundPhase(const PhaseSpec& spec, Host& host) : spec_(spec), host_(host) {}

  bool on(Stage stage) override {
    switch (stage) {
      case Stage::begin:
        for (std::int32_t i = 0; i < window_; ++i) add_piece();
        return false;
      case Stage::received:
        ++received_;
        add_piece();
        return false;
      case Stage::ready:
        ++staged_;
        pass_on();
        return over();
    }
    return false;
  }

 protected:
  virtual std::int32_t rest_of_round() const = 0;
  virtual void turn() {}  // called after each piece: sets the next one's partners and size

  bool over() const { return steps_ == 0 && staged_ == window_; }

  void pass_on() {
    if (next_piece_ == pieces_.size() || steps_ == 0 || staged_ == 0) return;
    const Piece piece = pieces_[next_piece_++];
    if (next_piece_ == pieces_.size()) {
      pieces_.clear();
      next_piece_ = 0;
    }
    host_.send(piece.to, piece.bytes);
    host_.receive(piece.from, piece.bytes);
    --steps_;
    --staged_;
  }

  std::int32_t next(std::int32_t place, bool forward) const {
    return (place + (forward ? 1 : spec_.line.size - 1)) % spec_.line.size;
  }

  const PhaseSpec spec_;
  Host& host_;
  std::int32_t window_ = 1;
  std::int32_t steps_ = 0;
  std::int32_t staged_ = 0, received_ = 0;
  std::int64_t bytes_ = 0;
  std::int32_t to_ = 0, from_ = 0;  // positions in the line

 private:
  struct Piece {
    std::int32_t to, from;  // ranks
    std::int64_t bytes;
  };

  void add_piece() {
    if (plain_ == 0 && rest_ == 0) {
      plain_ = window_;
      rest_ = rest_of_round();
      summing_ = !summing_;
    }
    pieces_.push_back({spec_.line.rank(to_), spec_.line.rank(from_), bytes_});
    const bool first = plain_ > 0;
    const bool sum = !first && (spec_.comm == Comm::reduce_scatter ||
                                (spec_.comm == Comm::all_reduce && summing_));
    host_.stage(bytes_, sum);
    turn();
    --(first ? plain_ : rest_);
  }

  std::int32_t plain_ = 0, rest_ = 0;  // pieces left of this round
  bool summing_ = false;
  std::vector<Piece> pieces_;
  std::size_t next_piece_ = 0;  // the first piece that was not sent
};

class Ring : public RoundPhase {
 public:
  Ring(const PhaseSpec& spec, Host& host) : RoundPhase(spec, host) {
    const auto n = spec.line.size;
    steps_ = n - 1;
    if (spec.comm == Comm::all_reduce) steps_ = 2 * (n - 1);
    if (spec.comm == Comm::all_to_all) steps_ = n * (n - 1) / 2;
    bytes_ = spec.comm == Comm::all_gather ? spec.bytes : spec.bytes / n;
    to_ = next(spec.line.position, spec.forward);
    from_ = next(spec.line.position, !spec.forward);
  }

 protected:
  std::int32_t rest_of_round() const override { return (spec_.line.size - 1) * window_; }
};

class Direct : public Ring {
 public:
  Direct(const PhaseSpec& spec, Host& host) : Ring(spec, host), half_(spec.line.size - 1) {
    window_ = half_;
    if (spec.implementation.window >= 0) window_ = std::min(spec.implementation.window, half_);
    if (spec.comm == Comm::all_to_all) steps_ = half_;
  }

  bool on(Stage stage) override {
    if (stage != Stage::ready || spec_.comm != Comm::all_reduce || steps_ > half_) {
      return Ring::on(stage);
    }
    ++staged_;
    if (received_ < half_) return false;  // the second half begins when all sums are complete
    for (std::int32_t i = 0; i < window_; ++i) pass_on();
    return over();
  }

 protected:
  std::int32_t rest_of_round() const override {
    return spec_.line.members == nullptr ? window_ : Ring::rest_of_round();
  }

  void turn() override {
    to_ = other(to_, spec_.forward);
    from_ = other(from_, !spec_.forward);
  }

 private:
  std::int32_t other(std::int32_t place, bool forward) const {
    place = next(place, forward);
    return place == spec_.line.position ? next(place, forward) : place;
  }

  std::int32_t half_;  // steps of half an all-reduce
};

class HalvingDoubling : public RoundPhase {
 public:
  HalvingDoubling(const PhaseSpec& spec, Host& host) : RoundPhase(spec, host) {
    growing_ = spec.comm != Comm::all_gather;
    steps_ = (spec.comm == Comm::all_reduce ? 2 : 1) * log();
    bytes_ = growing_ ? spec.bytes / 2 : spec.bytes;
    distance_ = growing_ ? 1 : spec.line.size / 2;
    meet();
  }

 protected:
  std::int32_t rest_of_round() const override { return log() - 1; }

  void turn() override {
    step();
    if (distance_ == spec_.line.size && spec_.comm == Comm::all_reduce) {
      growing_ = false;
      step();
    }
    meet();
  }

 private:
  std::int32_t log() const { return std::bit_width(static_cast<unsigned>(spec_.line.size)) - 1; }

  void step() {
    distance_ = growing_ ? distance_ * 2 : distance_ / 2;
    bytes_ = growing_ ? bytes_ / 2 : bytes_ * 2;
  }

  void meet() {
    if (distance_ == 0) return void(to_ = spec_.line.position);
    const bool ahead = spec_.line.position / distance_ % 2 == 0;
    const auto n = spec_.line.size;
    to_ = (spec_.line.position + (ahead ? distance_ : n - distance_ % n)) % n;
    from_ = to_;
  }

  bool growing_;  // whether the distance between partners grows and pieces shrink
  std::int32_t distance_;
};

// An all-reduce up and down a binary tree. Successive collectives alternate between two trees. Nodes
// are numbered in order (left subtree, node, right subtree); the root has one child.
class Tree : public Phase {
 public:
  Tree(const PhaseSpec& spec, Host& host) : spec_(spec), host_(host) {
    const auto n = spec.line.size;
    const auto root = spec.root_last ? n - 1 : 0;
    const auto shift = spec.root_last ? 1 : 0;  // from places to numbers 1 … n-1 of the subtree
    if (spec.line.position == root) {
      children_ = {spec.line.rank(n / 2 - shift)};
      return;
    }
    const auto number = spec.line.position + shift;
    const auto height = std::countr_zero(static_cast<unsigned>(number));
    const auto up = (number & ~(1 << height)) | (2 << height);
    parent_ = spec.line.rank(up < n ? up - shift : root);
    if (height > 0) {
      const auto reach = 1 << (height - 1);
      children_ = {spec.line.rank(number - reach - shift), spec.line.rank(number + reach - shift)};
    }
  }

  bool on(Stage stage) override {
    if (children_.empty()) return on_leaf();
    return parent_ < 0 ? on_root() : on_middle(stage);
  }

 private:
  enum class State { begin, two_children, one_child, to_parent, from_parent, to_children, end };

  bool on_leaf() {
    if (state_ == State::begin) {
      host_.stage(spec_.bytes, false);
      state_ = State::to_parent;
    } else if (state_ == State::to_parent) {
      exchange_with_parent();
    } else if (state_ == State::from_parent) {
      host_.stage(spec_.bytes, false);
      state_ = State::end;
    } else {
      return true;
    }
    return false;
  }

  bool on_middle(Stage stage) {
    if (state_ == State::begin) {
      state_ = State::two_children;
      for (const auto child : children_) host_.receive(child, spec_.bytes);
    } else if (state_ == State::two_children && stage == Stage::received) {
      host_.stage(spec_.bytes, true);
      state_ = State::one_child;
    } else if (state_ == State::one_child && stage == Stage::received) {
      host_.stage(spec_.bytes, true);
      state_ = State::to_parent;
    } else if (sums_ < 1 && stage == Stage::ready) {
      ++sums_;
    } else if (state_ == State::to_parent) {
      exchange_with_parent();
    } else if (state_ == State::from_parent && stage == Stage::received) {
      host_.stage(spec_.bytes, true);
      state_ = State::to_children;
    } else if (state_ == State::to_children) {
      for (const auto child : children_) host_.send(child, spec_.bytes);
      return true;
    }
    return false;
  }

  bool on_root() {
    if (state_ == State::begin) {
      state_ = State::one_child;
      host_.receive(children_[0], spec_.bytes);
    } else if (state_ == State::one_child) {
      host_.stage(spec_.bytes, true);
      state_ = State::to_children;
    } else {
      host_.send(children_[0], spec_.bytes);
      return true;
    }
    return false;
  }

  void exchange_with_parent() {
    state_ = State::from_parent;
    host_.send(parent_, spec_.bytes);
    host_.receive(parent_, spec_.bytes);
  }

  const PhaseSpec spec_;
  Host& host_;
  State state_ = State::begin;
  std::int32_t sums_ = 0;
  std::int32_t parent_ = -1;
  std::vector<std::int32_t> children_;
};

}  // namespace

std::unique_ptr<Phase> begin_phase(const PhaseSpec& spec, Host& host) {
  switch (spec.implementation.algorithm) {
    case Algorithm::ring:
      return std::make_unique<Ring>(spec, host);
    case Algorithm::direct:
      return std::make_unique<Direct>(spec, host);
    case Algorithm::halving_doubling:
      return std::make_unique<HalvingDoubling>(spec, host);
    case Algorithm::double_binary_tree:
      return std::make_unique<Tree>(spec, host);
  }
  return nullptr;
}

}  // namespace tacos::astra
