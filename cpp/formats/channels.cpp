#include "formats/channels.hpp"

#include <map>
#include <string>

namespace tacos::threadblocks {

Onward find_onward(const std::vector<Action>& actions, const Places& places) {
  Onward onward{std::vector<std::vector<Node>>(actions.size()),
                std::vector<std::uint8_t>(actions.size(), 0)};
  std::vector<Node> writer(places.size(), kNone), last_reader(actions.size(), kNone);
  const auto read = [&](Node node, std::size_t place) {
    const Node from = writer[place];
    if (from == kNone || last_reader[at(from)] == node) return;
    last_reader[at(from)] = node;
    onward.needed[at(from)] = static_cast<std::uint8_t>(std::min(onward.needed[at(from)] + 1, 2));
  };
  for (Node node = 0; node < static_cast<Node>(actions.size()); ++node) {
    const Action& action = actions[at(node)];
    Node from = kNone;
    bool one = action.op == StepOp::send;
    for (std::int32_t k = 0; action.src.used() && k < action.count; ++k) {
      const auto place = places.of(action.rank, action.src.buffer, action.src.slot + k);
      if (k == 0) from = writer[place];
      one = one && from != kNone && writer[place] == from && actions[at(from)].dst.used() &&
            actions[at(from)].count == action.count &&
            place == places.of(action.rank, actions[at(from)].dst.buffer,
                               actions[at(from)].dst.slot + k);
      read(node, place);
    }
    if (one && receives(actions[at(from)].op)) onward.sends[at(from)].push_back(node);
    for (std::int32_t k = 0; action.dst.used() && k < action.count; ++k) {
      const auto place = places.of(action.rank, action.dst.buffer, action.dst.slot + k);
      if (action.op == StepOp::reduce) read(node, place);
      writer[place] = node;
    }
  }
  for (const Action& action : actions) {
    for (std::int32_t k = 0; action.dst.used() && k < action.count; ++k) {
      const auto place = places.of(action.rank, action.dst.buffer, action.dst.slot + k);
      if (!places.is_output(action.rank, place) || writer[place] == kNone) continue;
      onward.needed[at(writer[place])] = 2;
      writer[place] = kNone;
    }
  }
  return onward;
}

namespace {

constexpr std::int32_t kLookahead = 32;  // hops

class Channels {
 public:
  Channels(const std::vector<Action>& actions, const Onward& onward, const PackOptions& options,
           std::int32_t budget, std::int32_t ranks)
      : actions_(actions),
        onward_(onward),
        options_(options),
        budget_(budget),
        link_(actions.size(), -1),
        peers_(at(ranks)) {
    std::map<std::pair<NodeId, NodeId>, std::int32_t> links;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].op != StepOp::send) continue;
      const auto key = std::pair(actions[i].rank, actions[at(actions[i].partner)].rank);
      const auto link =
          links.try_emplace(key, static_cast<std::int32_t>(links.size())).first->second;
      link_[i] = link_[at(actions[i].partner)] = link;
    }
    lines_.resize(links.size());
    result_.channel.assign(actions.size(), -1);
    result_.fused.assign(actions.size(), kNone);
  }

  Assignment assign() {
    for (Node node = 0; node < static_cast<Node>(actions_.size()); ++node) {
      if (receives(actions_[at(node)].op)) pass_on(node);
      if (actions_[at(node)].op == StepOp::send && result_.channel[at(node)] < 0) start(node);
    }
    result_.link = link_;
    result_.links = static_cast<std::int32_t>(lines_.size());
    return std::move(result_);
  }

 private:
  // A link on one channel.
  struct Line {
    std::int32_t onto = -1, from = -1;    // coupled links: the next one, the previous one
    std::int32_t sent = 0, received = 0;  // steps at its start and at its end
    Node last = kNone;                    // last receive
  };

  Line& line(std::int32_t link, std::int32_t channel) {
    auto& channels = lines_[at(link)];
    if (at(channel) >= channels.size()) channels.resize(at(channel) + 1);
    return channels[at(channel)];
  }
  // The number of ranks that a rank sends to, and receives from, on a channel.
  std::pair<std::int32_t, std::int32_t>& peers(NodeId rank, std::int32_t channel) {
    auto& channels = peers_[at(rank)];
    if (at(channel) >= channels.size()) channels.resize(at(channel) + 1);
    return channels[at(channel)];
  }
  bool can_couple(std::int32_t in, std::int32_t out, std::int32_t channel) {
    const auto onto = line(in, channel).onto, from = line(out, channel).from;
    if (onto == out && from == in) return true;
    return onto < 0 && from < 0 && line(in, channel).received + line(out, channel).sent < budget_;
  }
  // Whether the threads at both ends of a link have room for another step.
  bool has_room(std::int32_t link, std::int32_t channel) {
    const Line& here = line(link, channel);
    const auto at_start = here.sent + (here.from < 0 ? 0 : line(here.from, channel).received);
    const auto at_end = here.received + (here.onto < 0 ? 0 : line(here.onto, channel).sent);
    return at_start < budget_ && at_end < budget_;
  }
  bool can_carry(Node send, std::int32_t channel) {
    const auto link = link_[at(send)];
    const Node receive = actions_[at(send)].partner;
    const Node last = line(link, channel).last;
    if (last == kNone && (peers(actions_[at(send)].rank, channel).first >= options_.peers ||
                          peers(actions_[at(receive)].rank, channel).second >= options_.peers)) {
      return false;
    }
    return last < receive && has_room(link, channel);
  }
  void carry(Node send, std::int32_t channel, bool fused) {
    const Node receive = actions_[at(send)].partner;
    Line& here = line(link_[at(send)], channel);
    if (here.last == kNone) {
      ++peers(actions_[at(send)].rank, channel).first;
      ++peers(actions_[at(receive)].rank, channel).second;
    }
    here.last = receive;
    here.sent += fused ? 0 : 1;
    ++here.received;
    result_.channel[at(send)] = result_.channel[at(receive)] = channel;
  }
  void couple(std::int32_t in, std::int32_t out, std::int32_t channel) {
    line(in, channel).onto = out;
    line(out, channel).from = in;
  }

  void pass_on(Node receive) {
    if (options_.fusing_channels == 0) return;
    const auto channel = result_.channel[at(receive)];
    for (const Node send : onward_.sends[at(receive)]) {
      if (result_.channel[at(send)] >= 0) continue;
      if (!can_couple(link_[at(receive)], link_[at(send)], channel) || !can_carry(send, channel))
        continue;
      couple(link_[at(receive)], link_[at(send)], channel);
      carry(send, channel, true);
      result_.fused[at(receive)] = send;
      return;
    }
  }

  // The number of hops, from `send` on, that could be fused on a channel; calls `visit` for each.
  template <typename Visit>
  std::pair<std::int32_t, bool> hops(Node send, std::int32_t channel, const Visit& visit) {
    for (std::int32_t count = 0; count < kLookahead; ++count) {
      const Node receive = actions_[at(send)].partner;
      const auto& next = onward_.sends[at(receive)];
      if (next.empty() || options_.fusing_channels == 0) return {count, true};
      const auto found = std::find_if(next.begin(), next.end(), [&](Node n) {
        return can_couple(link_[at(receive)], link_[at(n)], channel);
      });
      if (found == next.end()) return {count, false};
      visit(link_[at(receive)], link_[at(*found)]);
      send = *found;
    }
    return {kLookahead, true};
  }

  void start(Node send) {
    std::int32_t best = -1, best_hops = -1;
    bool whole = false;
    for (std::int32_t channel = 0; channel < open_ + 1 && !whole; ++channel) {
      const bool fresh = channel == open_;
      if (fresh && (open_ == options_.channels || (best >= 0 && open_ >= options_.fusing_channels)))
        break;
      if (!can_carry(send, channel)) continue;
      const auto [count, all] = hops(send, channel, [](auto, auto) {});
      if (count <= best_hops) continue;
      best = channel;
      best_hops = count;
      whole = all;
    }
    if (best < 0) {
      invalid("the algorithm needs more than " + std::to_string(options_.channels) +
              " channels: chunks overtake each other between two ranks, or a thread has over " +
              std::to_string(options_.steps) + " steps, or a rank over " +
              std::to_string(options_.peers) + " peers on a channel");
    }
    open_ = std::max(open_, best + 1);
    carry(send, best, false);
    std::vector<std::pair<std::int32_t, std::int32_t>> pairs;
    hops(send, best, [&](std::int32_t in, std::int32_t out) { pairs.emplace_back(in, out); });
    for (const auto& [in, out] : pairs) {
      if (can_couple(in, out, best)) couple(in, out, best);
    }
  }

  const std::vector<Action>& actions_;
  const Onward& onward_;
  const PackOptions& options_;
  const std::int32_t budget_;
  std::vector<std::int32_t> link_;
  std::vector<std::vector<Line>> lines_;
  std::vector<std::vector<std::pair<std::int32_t, std::int32_t>>> peers_;  // per rank
  std::int32_t open_ = 0;
  Assignment result_;
};

}  // namespace

Assignment assign_channels(const std::vector<Action>& actions, const Onward& onward,
                           const PackOptions& options, std::int32_t budget, std::int32_t ranks) {
  return Channels(actions, onward, options, budget, ranks).assign();
}

}  // namespace tacos::threadblocks
