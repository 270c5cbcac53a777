// Execution by orbit: one rank of each orbit of ranks stands for all of them.
//
// If a symmetry maps a program to itself, and the network's routes too, then all images of a message leave and arrive
// at the same times, as long as ties are broken alike everywhere. So the ranks that are the lowest of their orbits are lowered and
// run alone, on a network whose links are the orbits of links. What a rank receives comes from its own
// send of the same transfer, whose image the message is.
//
// Times are those of all ranks together, except in two cases, in which ranks of the whole program differ. If two messages become
// ready for one link at the same moment, first come, first served, the whole program takes them in the order of its steps, which
// depends on the numbers of ranks; here it is the order of the representatives' steps. And if a rank starts two
// transfers over one port at the same time, which only an invalid schedule does, their numbers decide which comes first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lowering/moves.hpp"
#include "model/program.hpp"
#include "model/schedule.hpp"
#include "simulate/program_messages.hpp"
#include "support/progress.hpp"

namespace tacos {

class ByOrbit {
 public:
  // Nullopt if the schedule is not an orbit, or cannot be executed by orbit: if an element other than the identity keeps a
  // rank in place, if several ranks add up one sum, or if a route is a tree.
  static std::optional<ByOrbit> of(const Schedule& schedule);
  ~ByOrbit();
  ByOrbit(ByOrbit&&) noexcept;

  // The steps of one rank of each orbit. Throws like lower().
  Program lower(std::int32_t window, const Progress& progress) const;
  // The links that its messages take, which are orbits of links; nullopt if the network does not route the images of a
  // message over the images of its links, if two of them cross one link, or if a route passes through NPUs
  // or divides over several paths.
  std::optional<simulation::MessageRoutes> messages(const Program& program,
                                                    const Progress& progress) const;
  // Whether messages of several connections cross one link.
  bool shares_links() const;

 private:
  class Images;
  class Group;
  ByOrbit(const Schedule& schedule, std::unique_ptr<Group> group, OrbitMoves moves);

  const Schedule* schedule_;
  std::unique_ptr<Group> group_;
  OrbitMoves moves_;
};

}  // namespace tacos
