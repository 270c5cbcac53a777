// Jobs and members of an optimizer service, across its cores.
//
// Work on several cores goes through run_on(), which runs a function in the thread of a core. The step at which a
// member joins, or a snapshot is taken, is agreed in two rounds: every core reports the first step that none of its chunks
// has begun; the hub proposes the greatest of these, and a later one if a chunk has begun that step meanwhile.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hub/core.hpp"

namespace tacos::hub {

struct Admission {
  std::uint32_t slot = 0;
  std::uint64_t serial = 0;
  std::array<std::uint8_t, 16> key{};
  std::uint64_t first_step = 0;
  int memory = -1;  // descriptor of shared memory, or -1
  std::size_t memory_bytes = 0;
};

class Hub {
 public:
  explicit Hub(std::int32_t cores);
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;
  virtual ~Hub();

  std::int32_t cores() const { return static_cast<std::int32_t>(cores_.size()); }
  // Adds a job, with the values of a snapshot if one is given.
  std::uint64_t create(const JobSpec& spec, const Snapshot* resumed);
  void drop(std::uint64_t id, const std::string& why);
  std::shared_ptr<Job> job(std::uint64_t id) const;  // throws std::invalid_argument
  std::string failure(std::uint64_t id);

  // Throws std::invalid_argument if the job is full or has failed.
  Admission join(std::uint64_t id, const std::string& name, std::int32_t rank, bool share);
  void leave(std::uint64_t id, std::uint32_t slot, std::uint64_t serial);
  void lose(const Loss& loss);
  std::uint64_t next_step(std::uint64_t id);

  // All values at one version, or null if the job does not reach that version in time. Without a version, takes the
  // next one that all chunks reach.
  std::shared_ptr<Snapshot> snapshot(std::uint64_t id, std::optional<std::uint64_t> version,
                                     double patience_s);

  // For relays: waits until all chunks of a bucket are summed; returns false on timeout.
  bool wait_for_sums(std::uint64_t id, std::size_t bucket, double patience_s);
  std::span<float> sums(std::uint64_t id, std::size_t bucket);
  void deliver(std::uint64_t id, std::size_t bucket);

  // Members that were lost since the last call.
  std::vector<Loss> take_losses();
  Counters counters();

 protected:
  // Runs a function in the thread of a core, now or soon, in the order of the calls.
  virtual void run_on(std::size_t core, std::function<void(Core&)> what) = 0;
  // Reports the losses that a core has found; call it in the thread of that core.
  void relay_losses(std::size_t from);
  std::vector<std::unique_ptr<Core>> cores_;

 private:
  void release(std::uint64_t id, std::uint32_t slot, std::uint64_t serial);
  void for_all(const std::function<void(Core&)>& what);
  void wait_for(const std::function<bool()>& done, double patience_s) const;

  mutable std::mutex mutex_;
  std::mutex joining_;  // one member at a time
  std::map<std::uint64_t, std::shared_ptr<Job>> jobs_;
  std::map<std::uint64_t, std::array<std::uint64_t, kMostMembers>> taken_;  // serials; 0: free
  std::uint64_t created_ = 0, joined_ = 0;
  std::vector<Loss> losses_;
};

// A hub for tests, which moves bytes only when it is told to.
class ManualHub : public Hub {
 public:
  using Hub::Hub;
  int open(std::int32_t core) { return cores_.at(static_cast<std::size_t>(core))->open(); }
  bool feed(std::int32_t core, int connection, std::span<const std::byte> bytes);
  std::vector<std::byte> take(std::int32_t core, int connection, std::size_t most);
  bool ended(std::int32_t core, int connection) const;
  void close(std::int32_t core, int connection, const std::string& why);
  void tick(std::int64_t now_ms);

 protected:
  void run_on(std::size_t core, std::function<void(Core&)> what) override { what(*cores_[core]); }
};

}  // namespace tacos::hub
