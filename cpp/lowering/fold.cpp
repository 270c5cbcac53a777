#include "lowering/fold.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "support/index.hpp"
#include "support/work.hpp"
#include "synth/forest/translations.hpp"

namespace tacos {

namespace {

// The lanes of a schedule by their links and what they do.
class LaneTable {
 public:
  explicit LaneTable(const Schedule& schedule)
      : schedule_(schedule), table_(std::bit_ceil(2 * at(schedule.lanes())), -1) {
    for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
      auto& entry = table_[find_entry(lane, links_of(lane))];
      alone_ = alone_ && entry < 0;
      entry = lane;
    }
  }

  // Whether all lanes differ.
  bool alone() const { return alone_; }
  std::span<const LinkId> links_of(std::int32_t lane) const {
    return schedule_.routes().links(schedule_.stored().lane_route[at(lane)]);
  }
  // The lane over these links that does what `like` does; -1 if there is none.
  std::int32_t find(std::int32_t like, std::span<const LinkId> links) const {
    return table_[find_entry(like, links)];
  }

 private:
  // The entry of the lane, or a free one for it.
  std::size_t find_entry(std::int32_t like, std::span<const LinkId> links) const {
    const auto& t = schedule_.stored();
    std::uint64_t hash = t.lane_op[at(like)] * 2u + t.lane_reads[at(like)];
    for (const LinkId link : links) {
      hash = (hash ^ static_cast<std::uint64_t>(link + 1)) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    const auto mask = table_.size() - 1;
    for (auto i = hash & mask;; i = (i + 1) & mask) {
      const auto other = table_[i];
      if (other < 0) return i;
      const auto there = links_of(other);
      if (t.lane_op[at(other)] == t.lane_op[at(like)] &&
          t.lane_reads[at(other)] == t.lane_reads[at(like)] &&
          std::equal(there.begin(), there.end(), links.begin(), links.end())) {
        return i;
      }
    }
  }

  const Schedule& schedule_;
  bool alone_ = true;
  std::vector<std::int32_t> table_;  // open addressing; -1: free
};

bool maps_to_itself(const Schedule& schedule, const LaneTable& lanes, const Symmetry& symmetry) {
  const auto& t = schedule.stored();
  const auto& collective = schedule.collective();
  const auto nodes = at(schedule.topology().nodes()), links = at(schedule.topology().links());
  const auto position = collective.positions();
  std::vector<ChunkId> image_of(collective.chunks());
  std::vector<LinkId> moved_links;
  for (std::size_t g = 0; g < symmetry.orders.size(); ++g) {
    const auto node = symmetry.node_image.slice(g * nodes, (g + 1) * nodes);
    const auto link = symmetry.link_image.slice(g * links, (g + 1) * links);
    const auto moved = [&](NodeId npu) { return node[at(npu)]; };
    for (ChunkId chunk = 0; chunk < collective.chunks(); ++chunk) {
      image_of[chunk] = collective.image(chunk, moved, position);
    }
    for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
      moved_links.clear();
      for (const LinkId used : lanes.links_of(lane)) moved_links.push_back(link[at(used)]);
      const auto image = lanes.find(lane, moved_links);
      if (image < 0) return false;
      const auto begin = t.lane_begin[at(lane)], end = t.lane_begin[at(lane) + 1];
      const auto there = t.lane_begin[at(image)];
      if (t.lane_begin[at(image) + 1] - there != end - begin) return false;
      const auto legs = schedule.routes().legs(t.lane_route[at(lane)]);
      for (auto i = begin; i < end; ++i) {
        const auto other = there + i - begin;
        if (image_of[t.chunk[at(i)]] != t.chunk[at(other)]) return false;
        for (std::int32_t leg = 0; leg < legs; ++leg) {
          if (schedule.start(lane, i, leg) != schedule.start(image, other, leg)) return false;
        }
      }
    }
  }
  return true;
}

// The collective, enlarged to the next size at which all chunks are equal.
std::shared_ptr<const Collective> padded(const std::shared_ptr<const Collective>& collective) {
  auto part = collective->parts()[0];
  const auto cut = static_cast<std::int64_t>(part.members()) * part.chunks;
  if (part.size % cut == 0) return collective;
  part.size += cut - part.size % cut;
  return std::make_shared<const Collective>(collective->npus(), std::vector{std::move(part)});
}

// The transfers that leave the base of an orbit of NPUs.
Schedule folded_by(const Schedule& schedule, const forest::Translations& translations) {
  const auto& t = schedule.stored();
  const auto& routes = schedule.routes();
  std::vector<std::int64_t> link_begin{0}, lane_begin{0};
  std::vector<LinkId> links;
  std::vector<RouteId> lane_route;
  std::vector<std::uint8_t> op, reads;
  std::vector<ChunkId> chunk;
  std::vector<std::uint32_t> start;
  for (std::int32_t lane = 0; lane < schedule.lanes(); ++lane) {
    const RouteId route = t.lane_route[at(lane)];
    const NodeId src = routes.sources(route)[0];
    if (translations.base(src) != src) continue;
    lane_route.push_back(static_cast<RouteId>(lane_route.size()));
    op.push_back(t.lane_op[at(lane)]);
    reads.push_back(t.lane_reads[at(lane)]);
    const auto used = routes.links(route);
    links.insert(links.end(), used.begin(), used.end());
    link_begin.push_back(static_cast<std::int64_t>(links.size()));
    const auto begin = t.lane_begin[at(lane)], end = t.lane_begin[at(lane) + 1];
    for (auto i = begin; i < end; ++i) chunk.push_back(t.chunk[at(i)]);
    for (std::int32_t leg = 0; leg < routes.legs(route); ++leg) {
      for (auto i = begin; i < end; ++i) {
        start.push_back(static_cast<std::uint32_t>(schedule.start(lane, i, leg) / t.quantum));
      }
    }
    lane_begin.push_back(static_cast<std::int64_t>(chunk.size()));
  }
  std::vector<std::uint8_t> kinds(lane_route.size(), static_cast<std::uint8_t>(RouteKind::path));
  auto own = std::make_shared<const Routes>(schedule.shared_topology(), std::move(kinds),
                                            std::move(link_begin), std::move(links));
  Transfers transfers{
      std::move(lane_route), std::move(op),    std::move(reads), std::move(lane_begin),
      std::move(chunk),      std::move(start), t.quantum};
  return Schedule(padded(schedule.shared_collective()), std::move(own), std::move(transfers),
                  translations.symmetry(), schedule.provenance());
}

}  // namespace

std::optional<Schedule> folded(const Schedule& schedule, const Progress& progress) {
  const auto& collective = schedule.collective();
  const auto& topology = schedule.topology();
  if (schedule.symmetry() || schedule.lanes() == 0 || collective.parts().size() != 1 ||
      !collective.parts()[0].traits().uniform()) {
    return std::nullopt;
  }
  for (const RouteId route : schedule.stored().lane_route) {
    if (schedule.routes().kind(route) != RouteKind::path) return std::nullopt;
  }
  std::optional<LaneTable> lanes;
  for (std::size_t first = 0; first < topology.spec().dims.size(); ++first) {
    const auto translations = forest::Translations::of(topology, first);
    if (!translations) break;  // the other dimensions have no symmetry either
    progress.spend(static_cast<double>(topology.links()) * work::kVisit);
    if (!lanes) lanes.emplace(schedule);
    if (!lanes->alone()) break;
    progress.spend(static_cast<double>(schedule.lanes()) * work::kVisit +
                   static_cast<double>(schedule.transfers()) * work::kStep);
    try {
      if (maps_to_itself(schedule, *lanes, translations->symmetry())) {
        return folded_by(schedule, *translations);
      }
    } catch (const InfeasibleError&) {
      // The process group is not mapped to itself.
    }
  }
  return std::nullopt;
}

}  // namespace tacos
