#include "hub/hub.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <latch>
#include <system_error>
#include <thread>
#include <utility>

#include "support/error.hpp"

namespace tacos::hub {

namespace {

constexpr int kProposals = 16;  // proposed steps, each twice as far ahead as the last (chosen)
constexpr std::chrono::milliseconds kPoll{2};

std::array<std::uint8_t, 16> random_key() {
  std::array<std::uint8_t, 16> key{};
  if (getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return key;
}

// Creates memory that a worker can map too. It is sealed, because a worker could crash the service by shrinking it.
int shareable(std::size_t bytes) {
  const int memory = memfd_create("tacos-hub", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (memory < 0) return -1;
  if (ftruncate(memory, static_cast<off_t>(bytes)) != 0 ||
      fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    ::close(memory);
    return -1;
  }
  return memory;
}

}  // namespace

Hub::Hub(std::int32_t cores) {
  if (cores < 1 || cores > 1024) invalid("cores must be 1 to 1024; got " + std::to_string(cores));
  for (std::int32_t i = 0; i < cores; ++i) cores_.push_back(std::make_unique<Core>(i));
}

Hub::~Hub() = default;

void Hub::for_all(const std::function<void(Core&)>& what) {
  std::latch done(static_cast<std::ptrdiff_t>(cores_.size()));
  for (std::size_t i = 0; i < cores_.size(); ++i) {
    run_on(i, [&](Core& core) {
      what(core);
      done.count_down();
    });
  }
  done.wait();
}

std::shared_ptr<Job> Hub::job(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) invalid("there is no job " + std::to_string(id));
  return found->second;
}

std::uint64_t Hub::create(const JobSpec& spec, const Snapshot* resumed) {
  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = ++created_;
  }
  const auto made = std::make_shared<Job>(id, spec, cores());
  if (resumed != nullptr) {
    if (resumed->versions.size() != made->parts.chunks.size() ||
        resumed->arrays.size() != made->states + 1) {
      invalid("the checkpoint is of other parameters or of another optimizer");
    }
    made->versions = resumed->versions;
    made->updates = resumed->updates;
    for (std::size_t i = 0; i <= made->states; ++i) {
      const auto& to = i == 0 ? made->weights : made->state[i - 1];
      std::memcpy(to.data(), resumed->arrays[i].data(), to.bytes());
    }
  }
  for_all([&](Core& core) { core.add(made); });
  const std::lock_guard lock(mutex_);
  jobs_[id] = made;
  taken_[id].fill(0);
  return id;
}

void Hub::drop(std::uint64_t id, const std::string& why) {
  const auto kept = job(id);  // keeps it alive until no core needs it
  for_all([&](Core& core) { core.remove(id, why); });
  kept->relay_changed.notify_all();
  const std::lock_guard lock(mutex_);
  jobs_.erase(id);
  taken_.erase(id);
}

std::string Hub::failure(std::uint64_t id) {
  std::mutex one;
  std::string found;
  for_all([&](Core& core) {
    const auto why = core.failure(id);
    const std::lock_guard lock(one);
    if (found.empty()) found = why;
  });
  return found;
}

std::uint64_t Hub::next_step(std::uint64_t id) {
  std::mutex one;
  std::uint64_t next = 0;
  for_all([&](Core& core) {
    const auto step = core.next_step(id);
    const std::lock_guard lock(one);
    next = std::max(next, step);
  });
  return next;
}

Admission Hub::join(std::uint64_t id, const std::string& name, std::int32_t rank, bool share) {
  const auto found = job(id);
  const std::lock_guard joining(joining_);
  Admission admission;
  bool alone = true;
  {
    const std::lock_guard lock(mutex_);
    auto& taken = taken_[id];
    alone = std::none_of(taken.begin(), taken.end(), [](auto each) { return each != 0; });
    const auto free = std::find(taken.begin(), taken.end(), 0U);
    if (free == taken.end()) {
      invalid("job '" + found->spec.name + "' has " + std::to_string(kMostMembers) +
              " workers, the most");
    }
    admission.slot = static_cast<std::uint32_t>(free - taken.begin());
    *free = admission.serial = ++joined_;
  }
  const auto give_up = [&] {
    if (admission.memory >= 0) ::close(admission.memory);
    release(id, admission.slot, admission.serial);
  };
  admission.key = random_key();
  Member member;
  member.serial = admission.serial;
  member.name = name;
  member.rank = rank;
  member.key = admission.key;
  if (share) {
    admission.memory_bytes = 2 * found->weights.bytes();
    admission.memory = shareable(admission.memory_bytes);
    if (admission.memory >= 0) {
      member.shared =
          std::make_shared<Region>(Region::mapped(admission.memory, admission.memory_bytes));
    }
  }
  if (found->spec.deterministic && found->contributions[admission.slot].data() == nullptr) {
    found->contributions[admission.slot] = Region(found->weights.bytes());
  }
  if (alone) {  // the last members may have left chunks at different versions
    const auto version = next_step(id);
    for_all([&](Core& core) { core.settle(id, version); });
  }
  std::uint64_t margin = 0;
  for (int proposal = 0; proposal < kProposals; ++proposal) {
    member.first_step = next_step(id) + margin;
    std::atomic<bool> all = true;
    for_all([&](Core& core) {
      if (!core.admit(id, admission.slot, member)) all = false;
    });
    if (all) {
      admission.first_step = member.first_step;
      return admission;
    }
    for_all([&](Core& core) { core.leave(id, admission.slot, admission.serial); });
    if (const auto why = failure(id); !why.empty()) {
      give_up();
      invalid("job '" + found->spec.name + "' has failed: " + why);
    }
    margin = margin == 0 ? 1 : 2 * margin;
  }
  give_up();
  invalid("worker '" + name + "' could not join: training does not pause between steps");
}

void Hub::release(std::uint64_t id, std::uint32_t slot, std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  const auto taken = taken_.find(id);
  if (taken != taken_.end() && slot < kMostMembers && taken->second[slot] == serial) {
    taken->second[slot] = 0;
  }
}

void Hub::leave(std::uint64_t id, std::uint32_t slot, std::uint64_t serial) {
  for_all([&](Core& core) { core.leave(id, slot, serial); });
  release(id, slot, serial);
}

void Hub::lose(const Loss& loss) {
  for_all([&](Core& core) { core.lose(loss); });
  release(loss.job, loss.slot, loss.serial);
  const std::lock_guard lock(mutex_);
  losses_.push_back(loss);
}

void Hub::relay_losses(std::size_t from) {
  const auto found = std::exchange(cores_[from]->losses, {});
  for (const Loss& loss : found) {
    for (std::size_t i = 0; i < cores_.size(); ++i) {
      if (i == from) continue;
      run_on(i, [loss](Core& core) { core.lose(loss); });
    }
    release(loss.job, loss.slot, loss.serial);
    const std::lock_guard lock(mutex_);
    losses_.push_back(loss);
  }
}

std::vector<Loss> Hub::take_losses() {
  const std::lock_guard lock(mutex_);
  return std::exchange(losses_, {});
}

Counters Hub::counters() {
  std::mutex one;
  Counters sum;
  for_all([&](Core& core) {
    const std::lock_guard lock(one);
    sum.frames += core.counters.frames;
    sum.bytes_in += core.counters.bytes_in;
    sum.bytes_out += core.counters.bytes_out;
    sum.updates += core.counters.updates;
    sum.errors += core.counters.errors;
    sum.refused += core.counters.refused;
  });
  return sum;
}

void Hub::wait_for(const std::function<bool()>& done, double patience_s) const {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kPoll);
}

std::shared_ptr<Snapshot> Hub::snapshot(std::uint64_t id, std::optional<std::uint64_t> version,
                                        double patience_s) {
  const auto found = job(id);
  const auto chunks = found->parts.chunks.size();
  std::uint64_t margin = 0;
  for (int proposal = 0; proposal < kProposals; ++proposal) {
    auto made = std::make_shared<Snapshot>();
    made->any = found->spec.mode != Mode::sync;
    made->version = version ? *version : next_step(id) + margin;
    for (std::size_t i = 0; i <= found->states; ++i)
      made->arrays.emplace_back(found->weights.bytes());
    made->updates.assign(chunks, 0);
    made->versions.assign(chunks, kUntaken);
    made->left = static_cast<std::int64_t>(chunks);
    for_all([&](Core& core) { core.snapshot(id, made); });
    wait_for([&] { return made->left == 0 || made->missed; }, patience_s);
    if (made->left == 0) return made;
    if (version || !made->missed) return nullptr;
    margin = margin == 0 ? 1 : 2 * margin;
  }
  return nullptr;
}

bool Hub::wait_for_sums(std::uint64_t id, std::size_t bucket, double patience_s) {
  const auto found = job(id);
  auto& range = *found->buckets.at(bucket);
  std::unique_lock lock(found->relay_mutex);
  return found->relay_changed.wait_for(lock, std::chrono::duration<double>(patience_s),
                                       [&] { return range.summed == range.last - range.first; });
}

std::span<float> Hub::sums(std::uint64_t id, std::size_t bucket) {
  const auto found = job(id);
  const auto& range = *found->buckets.at(bucket);
  const auto& chunks = found->parts.chunks;
  const auto& last = chunks[static_cast<std::size_t>(range.last) - 1];
  const auto begin = chunks[static_cast<std::size_t>(range.first)].offset;
  const auto end = last.offset + room(last.count);
  return {found->sums.floats() + begin, static_cast<std::size_t>(end - begin)};
}

void Hub::deliver(std::uint64_t id, std::size_t bucket) {
  job(id)->buckets.at(bucket)->summed = 0;
  for_all([&](Core& core) { core.deliver(id, bucket); });
}

// --- machine

bool ManualHub::feed(std::int32_t core, int connection, std::span<const std::byte> bytes) {
  auto& one = *cores_.at(static_cast<std::size_t>(core));
  while (!bytes.empty() && one.exists(connection) && !one.ending(connection)) {
    const auto space = one.space(connection);
    const auto some = std::min(space.size(), bytes.size());
    std::memcpy(space.data(), bytes.data(), some);
    one.received(connection, some);
    bytes = bytes.subspan(some);
    relay_losses(static_cast<std::size_t>(core));
  }
  return one.exists(connection) && !one.ending(connection);
}

std::vector<std::byte> ManualHub::take(std::int32_t core, int connection, std::size_t most) {
  auto& one = *cores_.at(static_cast<std::size_t>(core));
  std::vector<std::byte> bytes;
  while (one.exists(connection) && bytes.size() < most) {
    std::array<iovec, 64> pieces{};
    const auto count = one.front(connection, pieces);
    if (count == 0) break;
    std::size_t some = 0;
    for (std::size_t i = 0; i < count && bytes.size() < most; ++i) {
      const auto* data = static_cast<const std::byte*>(pieces[i].iov_base);
      const auto part = std::min(pieces[i].iov_len, most - bytes.size());
      bytes.insert(bytes.end(), data, data + part);
      some += part;
    }
    one.sent(connection, some);
  }
  return bytes;
}

bool ManualHub::ended(std::int32_t core, int connection) const {
  const auto& one = *cores_.at(static_cast<std::size_t>(core));
  return !one.exists(connection) || one.ending(connection);
}

void ManualHub::close(std::int32_t core, int connection, const std::string& why) {
  auto& one = *cores_.at(static_cast<std::size_t>(core));
  if (one.exists(connection)) one.closed(connection, why);
  relay_losses(static_cast<std::size_t>(core));
}

void ManualHub::tick(std::int64_t now_ms) {
  for (std::size_t i = 0; i < cores_.size(); ++i) {
    cores_[i]->tick(now_ms);
    relay_losses(i);
  }
}

}  // namespace tacos::hub
