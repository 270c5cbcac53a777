#include "runtime/figures.hpp"

#include <algorithm>

namespace tacos {

namespace {

// All values are chosen, not measured.
constexpr std::size_t kFirst = 5;   // messages whose median is the first usual speed
constexpr double kLearning = 0.05;  // weight of each later message in the usual speed
constexpr double kRecent = 0.5;     // weight of a message in the reported speed
constexpr double kSoon = 0.5;       // seconds that a trend of three messages must span
constexpr double kSurely = 1.0;     // seconds that a trend of two messages must span
constexpr int kCalls = 8;           // fewest calls over which ranks are compared
constexpr double kPeriod = 1.0;     // shortest time over which ranks are compared, in seconds
// A rank becomes slow if others wait this share of the time for it.
constexpr double kSlowShare = 0.25;
constexpr double kFineShare = 0.1;  // a slow rank recovers if they wait at most this share

}  // namespace

void LinkWatch::expect(double rate, bool known) {
  expected_ = rate;
  known_ = known;
  learned_.clear();
  state_ = LinkState::usual;
  trend_ = LinkState::usual;
  rate_ = 0;
  wanted_ = 0;
  count_ = 0;
}

double LinkWatch::learned(std::int32_t algorithm, double rate) {
  const auto number = static_cast<std::size_t>(std::max(algorithm, 0));
  if (number >= learned_.size()) learned_.resize(number + 1);
  auto& [first, usual] = learned_[number];
  if (first.size() < kFirst) {
    first.push_back(rate);
    if (first.size() == kFirst) {
      std::nth_element(first.begin(), first.begin() + kFirst / 2, first.end());
      usual = first[kFirst / 2];
    }
  } else if (rate * kSlower >= usual) {
    usual += kLearning * (std::min(rate, kSlower * usual) - usual);
  }
  return usual;
}

bool LinkWatch::add(std::int32_t algorithm, double bytes, double seconds, double now) {
  if (bytes <= 0 || seconds <= 0) return false;
  const double rate = bytes / seconds;
  rate_ = rate_ > 0 ? rate_ + kRecent * (rate - rate_) : rate;
  wanted_ = known_ ? expected_ : std::max(expected_, learned(algorithm, rate));
  if (wanted_ <= 0) return false;
  const auto seen = rate * kSlower < wanted_             ? LinkState::slow
                    : known_ && rate > kSlower * wanted_ ? LinkState::fast
                                                         : LinkState::usual;
  if (seen != trend_) {
    trend_ = seen;
    count_ = 0;
    rate_ = rate;
  }
  if (count_ == 0) since_ = now - seconds;
  ++count_;
  const double span = now - since_;
  const bool lasting = (count_ >= 3 && span >= kSoon) || (count_ >= 2 && span >= kSurely);
  if (!lasting || state_ == seen) return false;
  state_ = seen;
  return true;
}

void RankWatch::start(double away, double now) {
  if (begin_ < 0) {
    begin_ = now;
    return;  // messages before the first call tell nothing about speed
  }
  total_ += away;
  period_ += away;
  ++calls_;
}

void RankWatch::hear(std::int32_t peer, double away) {
  if (calls_ == 0) return;
  const auto number = static_cast<std::size_t>(peer);
  if (number >= peers_.size()) peers_.resize(number + 1);
  auto& one = peers_[number];
  one.known = true;
  one.away += away;
  one.period += away;
  ++one.calls;
}

bool RankWatch::judge(double now) {
  if (calls_ < kCalls || now - begin_ < kPeriod) return false;
  const double time = now - begin_;
  std::vector<double> all{period_};
  for (const auto& peer : peers_) {
    if (peer.calls > calls_ / 2) all.push_back(peer.period * calls_ / peer.calls);
  }
  const auto middle = (all.size() - 1) / 2;  // for an even number, the lower middle
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(middle), all.end());
  bool news = false;
  for (auto& peer : peers_) {
    if (peer.calls > calls_ / 2) {
      peer.share = std::max(0.0, peer.period * calls_ / peer.calls - all[middle]) / time;
      const bool slow = peer.share > (peer.slow ? kFineShare : kSlowShare);
      news |= slow != peer.slow;
      peer.slow = slow;
    }
    peer.period = 0;
    peer.calls = 0;
  }
  period_ = 0;
  calls_ = 0;
  begin_ = now;
  return news;
}

}  // namespace tacos
