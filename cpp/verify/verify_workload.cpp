#include "verify/verify_workload.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <string>
#include <tuple>
#include <utility>

#include "support/index.hpp"
#include "verify/findings.hpp"

namespace tacos {

namespace {

constexpr std::size_t kMostNamed = 6;  // most nodes of a cycle, or ranks of a group, in a message
constexpr std::size_t kNone = static_cast<std::size_t>(-1);
constexpr const char* kComm[] = {"all-reduce",     "reduce",    "all-gather", "gather",
                                 "scatter",        "broadcast", "all-to-all", "reduce-scatter",
                                 "reduce-scatter", "barrier"};

std::string listed(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kMostNamed)
    text += " and " + std::to_string(ranks.size() - kMostNamed) + " more";
  return text;
}

class Checker {
 public:
  Checker(const Workload& workload, std::int64_t limit)
      : w_(workload), c_(workload.columns()), findings_(limit) {}

  VerifyReport run() {
    number();
    pair_messages();
    join_collectives();
    find_circle();
    return findings_.report(w_.nodes(), true);
  }

 private:
  std::size_t rows() const { return at(w_.nodes()); }

  void add(const char* rule, std::size_t row, std::string message) {
    findings_.add(
        {rule, static_cast<std::int64_t>(row), -1, -1, -1, w_.describe(row) + std::move(message)});
  }

  template <typename Visit>
  void each_dep(std::size_t row, const Visit& visit) const {
    for (auto i = c_.dep_begin[row]; i < c_.dep_begin[row + 1]; ++i) visit(at(c_.dep[at(i)]));
  }

  // The rows of each rank in the order in which they become ready.
  void number() {
    std::vector<std::uint32_t> waits(rows(), 0);
    child_begin_.assign(rows() + 1, 0);
    for (std::size_t row = 0; row < rows(); ++row) {
      each_dep(row, [&](std::size_t before) {
        ++waits[row];
        ++child_begin_[before + 1];
      });
    }
    for (std::size_t row = 0; row < rows(); ++row) child_begin_[row + 1] += child_begin_[row];
    children_.resize(child_begin_[rows()]);
    auto next = child_begin_;
    for (std::size_t row = 0; row < rows(); ++row) {
      each_dep(row, [&](std::size_t before) { children_[next[before]++] = row; });
    }
    using Entry = std::pair<std::int64_t, std::size_t>;  // id, row
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> ready;
    order_.reserve(rows());
    for (std::int32_t rank = 0; rank < w_.npus(); ++rank) {
      for (auto row = w_.begin(rank); row < w_.end(rank); ++row) {
        if (waits[row] == 0) ready.emplace(c_.id[row], row);
      }
      while (!ready.empty()) {
        const auto row = ready.top().second;
        ready.pop();
        order_.push_back(row);
        for (auto i = child_begin_[row]; i < child_begin_[row + 1]; ++i) {
          if (--waits[children_[i]] == 0) ready.emplace(c_.id[children_[i]], children_[i]);
        }
      }
    }
  }

  void pair_messages() {
    // Source, destination, tag, bytes.
    using Key = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int64_t>;
    std::map<Key, std::pair<std::vector<std::size_t>, std::vector<std::size_t>>> messages;
    for (const auto row : order_) {
      const auto kind = w_.kind(row);
      if (kind == NodeKind::send) {
        messages[{c_.rank[row], c_.peer[row], c_.tag[row], c_.bytes[row]}].first.push_back(row);
      } else if (kind == NodeKind::recv) {
        messages[{c_.peer[row], c_.rank[row], c_.tag[row], c_.bytes[row]}].second.push_back(row);
      }
    }
    send_of_.assign(rows(), kNone);
    for (const auto& [key, sides] : messages) {
      const auto& [sends, receives] = sides;
      const auto both = std::min(sends.size(), receives.size());
      for (std::size_t i = 0; i < both; ++i) send_of_[receives[i]] = sends[i];
      for (auto i = both; i < sends.size(); ++i) {
        add("unmatched", sends[i], " sends a message that is never received");
      }
      for (auto i = both; i < receives.size(); ++i) {
        add("unmatched", receives[i], " waits for a message that is never sent");
      }
    }
  }

  void join_collectives() {
    std::vector<std::int32_t> everyone(at(w_.npus()));
    for (std::size_t i = 0; i < everyone.size(); ++i) everyone[i] = static_cast<std::int32_t>(i);
    std::map<std::int32_t, std::map<std::int32_t, std::vector<std::size_t>>> by_group;
    for (const auto row : order_) {
      if (w_.kind(row) != NodeKind::coll) continue;
      by_group[c_.group[row]][c_.rank[row]].push_back(row);
    }
    meeting_.assign(rows(), kNone);
    for (const auto& [group, by_rank] : by_group) {
      const auto& members = group == 0 ? everyone : w_.group(group);
      if (members.size() == 1) {
        for (const auto row : by_rank.begin()->second) {
          add("alone", row, " is a collective of a single rank, which simulators never finish");
        }
        continue;
      }
      std::size_t most = 0;
      for (const auto& [rank, mine] : by_rank) most = std::max(most, mine.size());
      for (std::size_t k = 0; k < most; ++k) meet(group, k, members, by_rank);
    }
  }

  // The k-th collective of a group.
  void meet(std::int32_t group, std::size_t k, const std::vector<std::int32_t>& members,
            const std::map<std::int32_t, std::vector<std::size_t>>& by_rank) {
    std::vector<std::size_t> joined;
    std::vector<std::int32_t> absent;
    for (const auto rank : members) {
      const auto mine = by_rank.find(rank);
      if (mine != by_rank.end() && k < mine->second.size()) {
        joined.push_back(mine->second[k]);
      } else {
        absent.push_back(rank);
      }
    }
    const auto first = joined.front();
    const auto which = " (number " + std::to_string(k + 1) + " of " +
                       (group == 0 ? "all ranks" : "group " + std::to_string(group)) + ")";
    if (!absent.empty()) add("missing", first, which + " is never joined by " + listed(absent));
    for (const auto row : joined) {
      if (c_.comm[row] != c_.comm[first] || c_.bytes[row] != c_.bytes[first]) {
        add("mismatch", row,
            which + " is " + described(row) + ", but on rank " + std::to_string(c_.rank[first]) +
                " it is " + described(first));
      }
    }
    for (const auto row : joined) meeting_[row] = meetings_.size();
    meetings_.push_back({std::move(joined), absent.empty()});
  }

  std::string described(std::size_t row) const {
    return std::string(kComm[c_.comm[row]]) + " of " + std::to_string(c_.bytes[row]) + " B";
  }

  // Executes all nodes that can run; follows the remaining ones back to a cycle.
  void find_circle() {
    std::vector<std::uint32_t> waits(rows(), 0);
    std::vector<std::size_t> missing(meetings_.size());  // members that have not begun
    std::vector<std::size_t> receive_of(rows(), kNone);
    for (std::size_t row = 0; row < rows(); ++row) {
      waits[row] = static_cast<std::uint32_t>(c_.dep_begin[row + 1] - c_.dep_begin[row]);
      if (send_of_[row] == kNone) continue;
      ++waits[row];
      receive_of[send_of_[row]] = row;
    }
    for (std::size_t m = 0; m < meetings_.size(); ++m) missing[m] = meetings_[m].rows.size();
    done_.assign(rows(), 0);
    std::vector<std::size_t> ready;
    const auto end = [&](std::size_t row) {
      done_[row] = 1;
      for (auto i = child_begin_[row]; i < child_begin_[row + 1]; ++i) {
        if (--waits[children_[i]] == 0) ready.push_back(children_[i]);
      }
      if (receive_of[row] != kNone && --waits[receive_of[row]] == 0) {
        ready.push_back(receive_of[row]);
      }
    };
    for (std::size_t row = 0; row < rows(); ++row) {
      if (waits[row] == 0) ready.push_back(row);
    }
    while (!ready.empty()) {
      const auto row = ready.back();
      ready.pop_back();
      if (unmatched(row)) continue;
      const auto m = meeting_[row];
      if (m == kNone) {
        end(row);
      } else if (--missing[m] == 0 && meetings_[m].whole) {
        for (const auto member : meetings_[m].rows) end(member);
      }
    }
    report_circle();
  }

  bool unmatched(std::size_t row) const {
    return w_.kind(row) == NodeKind::recv && send_of_[row] == kNone;
  }

  // A node that is not done and that this one waits for, or none: then another rule names the cause.
  std::size_t blocker(std::size_t row) const {
    auto found = kNone;
    each_dep(row, [&](std::size_t before) {
      if (found == kNone && done_[before] == 0) found = before;
    });
    if (found != kNone) return found;
    if (send_of_[row] != kNone && done_[send_of_[row]] == 0) return send_of_[row];
    if (meeting_[row] == kNone) return kNone;
    for (const auto member : meetings_[meeting_[row]].rows) {
      bool waits = false;
      each_dep(member, [&](std::size_t before) { waits = waits || done_[before] == 0; });
      if (member != row && waits) return member;
    }
    return kNone;
  }

  void report_circle() {
    std::vector<std::uint8_t> seen(rows(), 0);  // 1 on this way, 2 before
    for (std::size_t start = 0; start < rows(); ++start) {
      std::vector<std::size_t> way;
      auto row = start;
      while (row != kNone && done_[row] == 0 && seen[row] == 0) {
        seen[row] = 1;
        way.push_back(row);
        row = blocker(row);
      }
      const bool circle = row != kNone && done_[row] == 0 && seen[row] == 1;
      for (const auto passed : way) seen[passed] = 2;
      if (!circle) continue;
      const auto from = std::find(way.begin(), way.end(), row);
      std::string text;
      std::size_t shown = 0;
      for (auto step = from + 1; step < way.end() && shown < kMostNamed; ++step, ++shown) {
        text += " waits for " + w_.describe(*step) + ", which";
      }
      if (way.end() - from > static_cast<std::ptrdiff_t>(kMostNamed) + 1) text += " … which";
      add("deadlock", row, text + " waits for the first of them: none can ever start");
    }
  }

  struct Meeting {
    std::vector<std::size_t> rows;  // of the members that join
    bool whole;                     // all members do
  };

  const Workload& w_;
  const WorkloadColumns& c_;
  verification::Findings findings_;
  std::vector<std::size_t> child_begin_, children_, order_;
  std::vector<std::size_t> send_of_, meeting_;  // by row
  std::vector<Meeting> meetings_;
  std::vector<std::uint8_t> done_;
};

}  // namespace

VerifyReport verify(const Workload& workload, std::int64_t limit) {
  return Checker(workload, limit).run();
}

}  // namespace tacos
