#include "aggregation/udp.hpp"

#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <random>
#include <system_error>
#include <utility>

#include "runtime/tcp.hpp"
#include "support/error.hpp"

namespace tacos::aggregation {

namespace {

constexpr std::size_t kBatch = 64;  // datagrams per system call (chosen)
constexpr int kBuffer = 8 << 20;    // bytes of a socket's buffer; the kernel may grant fewer
constexpr std::int64_t kPause_us = 100'000;       // between checks whether to stop
constexpr std::uint64_t kRefused_us = 1'000'000;  // time for a switch to be restarted
constexpr std::uint64_t kExpire_us = 1'000'000;

std::uint64_t now_us() {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                        std::chrono::steady_clock::now().time_since_epoch())
                                        .count());
}

sockaddr_in sockaddr_of(Address address) {
  sockaddr_in result{};
  result.sin_family = AF_INET;
  result.sin_addr.s_addr = htonl(static_cast<std::uint32_t>(address >> 16));
  result.sin_port = htons(static_cast<std::uint16_t>(address & 0xffffU));
  return result;
}

Address address_of(const sockaddr_in& from) {
  return std::uint64_t{ntohl(from.sin_addr.s_addr)} << 16 | ntohs(from.sin_port);
}

std::string text_of(Address address) {
  const auto place = sockaddr_of(address);
  std::array<char, INET_ADDRSTRLEN> text{};
  inet_ntop(AF_INET, &place.sin_addr, text.data(), text.size());
  return std::string(text.data()) + ":" + std::to_string(address & 0xffffU);
}

std::uint64_t random_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

int open_socket(Address at) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw Error("cannot open a UDP socket: " + std::generic_category().message(errno));
  for (const int option : {SO_RCVBUF, SO_SNDBUF}) {
    setsockopt(fd, SOL_SOCKET, option, &kBuffer, sizeof kBuffer);
  }
  // With privileges, these options exceed the machine's limits.
  for (const int option : {SO_RCVBUFFORCE, SO_SNDBUFFORCE}) {
    setsockopt(fd, SOL_SOCKET, option, &kBuffer, sizeof kBuffer);
  }
  const auto place = sockaddr_of(at);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&place), sizeof place) != 0) {
    const int error = errno;
    close(fd);
    const std::string where = text_of(at);
    if (error == EADDRINUSE) {
      throw Error("another program, perhaps another switch, uses UDP port " + where +
                  "; choose another port");
    }
    throw Error("cannot listen at " + where + ": " + std::generic_category().message(error));
  }
  return fd;
}

// Datagrams that arrive together, and those that leave.
class Batch {
 public:
  explicit Batch(std::size_t bytes)
      : bytes_((bytes + 63) / 64 * 64), memory_(kBatch * bytes_ + 64), froms_(kBatch) {
    const auto start = reinterpret_cast<std::uintptr_t>(memory_.data());
    first_ = memory_.data() + (64 - start % 64) % 64;
    for (std::size_t i = 0; i < kBatch; ++i) {
      pieces_.push_back({first_ + i * bytes_, bytes_});
      mmsghdr message{};
      message.msg_hdr.msg_name = &froms_[i];
      message.msg_hdr.msg_iov = nullptr;
      messages_.push_back(message);
    }
    for (std::size_t i = 0; i < kBatch; ++i) {
      messages_[i].msg_hdr.msg_iov = &pieces_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
  }

  int receive(int fd, int flags) {
    for (auto& message : messages_) message.msg_hdr.msg_namelen = sizeof(sockaddr_in);
    return recvmmsg(fd, messages_.data(), kBatch, flags, nullptr);
  }
  std::span<const std::byte> packet(std::size_t i) const {
    return {first_ + i * bytes_, messages_[i].msg_len};
  }
  Address from(std::size_t i) const { return address_of(froms_[i]); }

 private:
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* first_;
  std::vector<sockaddr_in> froms_;
  std::vector<iovec> pieces_;
  std::vector<mmsghdr> messages_;
};

class Sender {
 public:
  void add(Address to, const std::byte* data, std::size_t bytes) {
    tos_.push_back(sockaddr_of(to));
    pieces_.push_back({const_cast<std::byte*>(data), bytes});
  }
  void flush(int fd) {
    messages_.resize(tos_.size());
    for (std::size_t i = 0; i < tos_.size(); ++i) {
      messages_[i] = {};
      messages_[i].msg_hdr.msg_name = &tos_[i];
      messages_[i].msg_hdr.msg_namelen = sizeof(sockaddr_in);
      messages_[i].msg_hdr.msg_iov = &pieces_[i];
      messages_[i].msg_hdr.msg_iovlen = 1;
    }
    std::size_t done = 0;
    int tries = 0;
    while (done < messages_.size()) {
      const auto left = static_cast<unsigned>(std::min<std::size_t>(messages_.size() - done, 1024));
      const int sent = sendmmsg(fd, &messages_[done], left, 0);
      if (sent > 0) {
        done += static_cast<std::size_t>(sent);
        tries = 0;
        continue;
      }
      if (errno == EINTR) continue;
      // The kernel reports an error of an earlier datagram once, so this datagram is tried again. One that cannot be
      // sent at all counts as lost, and the protocol retransmits it.
      if (++tries >= 2) {
        ++done;
        tries = 0;
      }
    }
    tos_.clear();
    pieces_.clear();
  }

 private:
  std::vector<sockaddr_in> tos_;
  std::vector<iovec> pieces_;
  std::vector<mmsghdr> messages_;
};

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    const auto code = static_cast<unsigned char>(c);
    result += code < 0x20 || code > 0x7e ? '?' : c;
  }
  return result + '"';
}

// Whether a packet asks for the counters, with a token that the switch accepts.
bool asks(const Switch& state, std::span<const std::byte> packet) {
  PacketHeader header{};
  Token token{};
  return read_header(packet, header) && header.kind == PacketKind::question &&
         read_body(packet, token) && state.accepts(token);
}

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

Address address_of(const std::string& ipv4, std::uint16_t port) {
  in_addr place{};
  if (inet_pton(AF_INET, ipv4.c_str(), &place) != 1) {
    throw std::invalid_argument("'" + ipv4 + "' is not an IPv4 address such as 127.0.0.1");
  }
  return std::uint64_t{ntohl(place.s_addr)} << 16 | port;
}

struct UdpSwitch::Shard {
  Shard(const UdpSwitchOptions& options, std::uint64_t seed)
      : state(options.limits, options.tokens, seed, options.shards), random(seed ^ 0x5bd1e995U) {}
  std::uint16_t number = 0;
  int socket = -1;
  std::mutex lock;
  Switch state;
  std::uint64_t random;
  std::uint64_t lost_in = 0, lost_out = 0, bytes_in = 0, bytes_out = 0;
  std::atomic<double> busy = 0;
  std::string failure;

  // xorshift64*, whose upper 53 bits are uniform in [0, 1).
  bool chance(double probability) {
    if (probability <= 0) return false;
    random ^= random >> 12;
    random ^= random << 25;
    random ^= random >> 27;
    return static_cast<double>(random * 0x2545F4914F6CDD1DU >> 11) * 0x1p-53 < probability;
  }
};

UdpSwitch::UdpSwitch(const UdpSwitchOptions& options)
    : options_(options), seed_(options.seed != 0 ? options.seed : random_seed()) {
  if (options.shards == 0 || options.shards > 64) {
    throw std::invalid_argument("cores must be 1 to 64; got " + std::to_string(options.shards));
  }
  const Address base = aggregation::address_of(options.host, options.port);
  for (std::uint16_t i = 0; i < options.shards; ++i) {
    auto shard = std::make_unique<Shard>(options, seed_ + i * 0x9E3779B97F4A7C15U);
    shard->number = i;
    if (options.parent != 0) shard->state.set_parent(options.parent, options.members);
    const Address at = i == 0 ? base : (base & ~Address{0xffff}) | (port_ + i);
    shards_.push_back(std::move(shard));
    shards_.back()->socket = open_socket(at);
    if (i == 0) {
      sockaddr_in place{};
      socklen_t length = sizeof place;
      getsockname(shards_[0]->socket, reinterpret_cast<sockaddr*>(&place), &length);
      port_ = ntohs(place.sin_port);
    }
    timeval wait{.tv_sec = 0, .tv_usec = kPause_us};
    setsockopt(shards_.back()->socket, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
  }
}

UdpSwitch::~UdpSwitch() {
  stop();
  for (const auto& shard : shards_) {
    if (shard->socket >= 0) close(shard->socket);
  }
}

void UdpSwitch::use_kernel(const std::string& interface, const KernelTables& tables) {
  if (shards_.size() != 1 || options_.parent != 0) {
    throw std::invalid_argument(
        "a switch with XDP has one core, as the kernel uses all, and no parent");
  }
  kernel_ = std::make_unique<Kernel>(interface, tables);
  shards_.front()->state.set_plane(kernel_.get());
}

void UdpSwitch::start() {
  if (!threads_.empty()) return;
  stopping_ = false;
  started_us_ = now_us();
  for (auto& shard : shards_) {
    threads_.emplace_back([this, &shard] { serve(*shard); });
  }
}

void UdpSwitch::stop() {
  stopping_ = true;
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

std::string UdpSwitch::failure() const {
  for (const auto& shard : shards_) {
    const std::lock_guard guard(shard->lock);
    if (!shard->failure.empty()) return shard->failure;
  }
  return "";
}

double UdpSwitch::busy_s() const {
  double sum = 0;
  for (const auto& shard : shards_) sum += shard->busy;
  return sum;
}

// Copies changes of the first shard's jobs to all other shards, before answers tell workers to use them.
void UdpSwitch::carry_changes(Shard& first) {
  for (const auto& change : std::exchange(first.state.changes, {})) {
    for (auto& other : shards_) {
      if (other.get() == &first) continue;
      const std::lock_guard guard(other->lock);
      other->state.mirror(first.state, change.job);
    }
  }
}

void UdpSwitch::serve(Shard& shard) {
  Batch batch(packet_bytes(options_.limits.packet_elements) + 128);
  Sender sender;
  std::vector<Outgoing> out;
  std::uint64_t expired_us = now_us();
  while (!stopping_) {
    const int got = batch.receive(shard.socket, MSG_WAITFORONE);
    if (got < 0 && errno != EAGAIN && errno != EINTR) {
      const std::lock_guard guard(shard.lock);
      shard.failure = "cannot receive: " + std::generic_category().message(errno);
      return;
    }
    const std::uint64_t time = now_us();
    std::vector<Switch::Change> found;
    std::vector<Address> askers;
    {
      const std::lock_guard guard(shard.lock);
      for (std::size_t i = 0; got > 0 && i < static_cast<std::size_t>(got); ++i) {
        const auto packet = batch.packet(i);
        shard.bytes_in += packet.size();
        if (shard.chance(options_.loss_in)) {
          ++shard.lost_in;
        } else if (options_.echo) {
          out.push_back({batch.from(i), packet.data(), packet.size()});
        } else if (asks(shard.state, packet)) {
          askers.push_back(batch.from(i));
        } else {
          shard.state.receive(batch.from(i), packet, time, out);
        }
      }
      if (shard.number == 0) {
        if (time > expired_us + kExpire_us) {
          shard.state.expire(time);
          expired_us = time;
        }
        carry_changes(shard);
      } else {
        found = std::exchange(shard.state.changes, {});
      }
      for (const auto& one : out) {
        if (shard.chance(options_.loss_out)) {
          ++shard.lost_out;
          continue;
        }
        shard.bytes_out += one.bytes;
        sender.add(one.to, one.data, one.bytes);
      }
      out.clear();
      // Under the lock, because the datagrams point into the slots.
      sender.flush(shard.socket);
      shard.state.flushed();
    }
    for (const auto& change : found) {
      if (change.failure.empty()) continue;
      Shard& first = *shards_.front();
      const std::lock_guard guard(first.lock);
      first.state.fail_job(change.job, change.failure, out);
      carry_changes(first);
      for (const auto& one : out) sender.add(one.to, one.data, one.bytes);
      out.clear();
      sender.flush(first.socket);
    }
    shard.busy = thread_seconds();
    if (!askers.empty()) {  // without the lock, because stats() locks all shards
      const auto header = make_header(PacketKind::answer);
      const std::string text = stats();
      std::vector<std::byte> reply(sizeof header + text.size());
      std::memcpy(reply.data(), &header, sizeof header);
      std::memcpy(reply.data() + sizeof header, text.data(), text.size());
      for (const auto asker : askers) sender.add(asker, reply.data(), reply.size());
      sender.flush(shard.socket);
    }
  }
}

std::string UdpSwitch::stats() const {
  SwitchCounters sum;
  std::uint64_t lost_in = 0, lost_out = 0, bytes_in = 0, bytes_out = 0;
  std::vector<Switch::JobView> jobs;
  const auto count = [&](const SwitchCounters& c) {
    for (const auto field :
         {&SwitchCounters::packets, &SwitchCounters::contributions, &SwitchCounters::duplicates,
          &SwitchCounters::resent, &SwitchCounters::old, &SwitchCounters::early,
          &SwitchCounters::stale, &SwitchCounters::out_of_range, &SwitchCounters::mismatched,
          &SwitchCounters::malformed, &SwitchCounters::control, &SwitchCounters::results,
          &SwitchCounters::forwarded, &SwitchCounters::refused, &SwitchCounters::generations,
          &SwitchCounters::sent}) {
      sum.*field += c.*field;
    }
  };
  if (kernel_) {
    const auto more = kernel_->counters();
    count(more.of);
    lost_in = more.lost_in;
    lost_out = more.lost_out;
    bytes_in = more.bytes_in;
    bytes_out = more.bytes_out;
  }
  for (const auto& shard : shards_) {
    const std::lock_guard guard(shard->lock);
    count(shard->state.counters());
    lost_in += shard->lost_in;
    lost_out += shard->lost_out;
    bytes_in += shard->bytes_in;
    bytes_out += shard->bytes_out;
    for (const auto& view : shard->state.jobs()) {
      const auto same = std::find_if(jobs.begin(), jobs.end(),
                                     [&](const auto& job) { return job.name == view.name; });
      if (same == jobs.end() || shard->number == 0) {
        jobs.push_back(view);
      } else {
        same->contributions += view.contributions;
        same->results += view.results;
        same->duplicates += view.duplicates;
      }
    }
  }
  std::string text =
      "{\"uptime_s\": " + std::to_string(1e-6 * static_cast<double>(now_us() - started_us_)) +
      ", \"busy_s\": " + std::to_string(busy_s());
  const std::pair<const char*, std::uint64_t> figures[] = {
      {"packets", sum.packets},
      {"contributions", sum.contributions},
      {"duplicates", sum.duplicates},
      {"resent", sum.resent},
      {"old", sum.old},
      {"early", sum.early},
      {"stale", sum.stale},
      {"out_of_range", sum.out_of_range},
      {"mismatched", sum.mismatched},
      {"malformed", sum.malformed},
      {"control", sum.control},
      {"results", sum.results},
      {"forwarded", sum.forwarded},
      {"refused", sum.refused},
      {"generations", sum.generations},
      {"sent", sum.sent},
      {"lost_in", lost_in},
      {"lost_out", lost_out},
      {"bytes_in", bytes_in},
      {"bytes_out", bytes_out},
  };
  for (const auto& [name, value] : figures) {
    text += ", \"" + std::string(name) + "\": " + std::to_string(value);
  }
  text += ", \"jobs\": [";
  for (const auto& job : jobs) {
    text += (text.back() == '[' ? "" : ", ");
    text += "{\"name\": " + quoted(job.name) + ", \"workers\": " + std::to_string(job.workers) +
            ", \"pool\": " + std::to_string(job.pool) +
            ", \"packet_elements\": " + std::to_string(job.packet_elements) +
            ", \"running\": " + (job.generation != 0 ? "true" : "false") +
            ", \"kernel\": " + (job.elsewhere ? "true" : "false") +
            ", \"joined\": " + std::to_string(std::popcount(job.joined)) +
            ", \"contributions\": " + std::to_string(job.contributions) +
            ", \"results\": " + std::to_string(job.results) +
            ", \"duplicates\": " + std::to_string(job.duplicates) + "}";
  }
  return text + "]}";
}

// --- workers

UdpWorker::UdpWorker(Address switch_address, const std::string& bind,
                     const WorkerSettings& settings)
    : switch_(switch_address),
      worker_(settings),
      buffer_bytes_(packet_bytes(settings.packet_elements) + 512) {
  socket_ = open_socket(aggregation::address_of(bind.empty() ? "0.0.0.0" : bind, 0));
  const int on = 1;  // report ICMP errors: nothing listens at the switch's port
  setsockopt(socket_, IPPROTO_IP, IP_RECVERR, &on, sizeof on);
}

UdpWorker::~UdpWorker() {
  if (socket_ >= 0) close(socket_);
}

void UdpWorker::send(const std::vector<WorkerPacket>& packets) {
  static thread_local Sender sender;
  for (const auto& packet : packets) sender.add(switch_ + packet.shard, packet.data, packet.bytes);
  sender.flush(socket_);
}

bool UdpWorker::refused(std::uint64_t time_us) {
  std::array<std::byte, 512> control{};
  std::array<std::byte, 64> data{};
  bool any = false;
  for (int i = 0; i < 64; ++i) {
    iovec piece{data.data(), data.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(socket_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
      if (c->cmsg_level != IPPROTO_IP || c->cmsg_type != IP_RECVERR) continue;
      sock_extended_err error{};
      std::memcpy(&error, CMSG_DATA(c), sizeof error);
      any |= error.ee_errno == ECONNREFUSED;
    }
  }
  if (any && refused_us_ == 0) refused_us_ = time_us;
  return refused_us_ != 0 && time_us > refused_us_ + kRefused_us;
}

void UdpWorker::all_reduce(const void* from, void* to, std::uint64_t elements, DType dtype,
                           bool average, const std::function<void()>& idle) {
  const bool in_place = from == to;
  if (in_place) {
    const auto* bytes = static_cast<const std::byte*>(from);
    copy_.assign(bytes, bytes + elements * size_of(dtype));
    from = copy_.data();
  }
  Batch batch(buffer_bytes_);
  std::vector<WorkerPacket> out;
  refused_us_ = 0;
  std::uint64_t idle_us = now_us();
  in_place_ = in_place ? static_cast<std::byte*>(to) : nullptr;
  worker_.start(from, to, elements, dtype, average, now_us(), out);
  send(out);
  while (worker_.state() != WorkerState::idle && worker_.state() != WorkerState::failed) {
    int got = batch.receive(socket_, MSG_DONTWAIT);
    std::uint64_t time = now_us();
    if (got <= 0) {
      const std::uint64_t due = worker_.deadline_us();
      const std::uint64_t wait = due > time ? std::min<std::uint64_t>(due - time, kPause_us) : 0;
      pollfd ready{.fd = socket_, .events = POLLIN, .revents = 0};
      const timespec limit{.tv_sec = 0, .tv_nsec = static_cast<long>(wait) * 1000};
      if (wait > 0) ppoll(&ready, 1, &limit, nullptr);
      time = now_us();
      if ((ready.revents & POLLERR) != 0 && refused(time)) {
        worker_.give_up("nothing listens at " + text_of(switch_) + ": the switch has ended");
      }
    }
    out.clear();
    for (std::size_t i = 0; got > 0 && i < static_cast<std::size_t>(got); ++i) {
      const Address sender = batch.from(i);
      if (sender < switch_ || sender >= switch_ + worker_.shards()) continue;  // not the switch
      refused_us_ = 0;
      worker_.receive(batch.packet(i), time, out);
    }
    send(out);
    if (time >= worker_.deadline_us()) {
      out.clear();
      worker_.poll(time, out);
      send(out);
    }
    if (time > idle_us + kPause_us) {
      idle_us = time;
      try {
        idle();
      } catch (...) {
        worker_.give_up("the operation was interrupted");
        restore();
        throw;
      }
    }
  }
  if (worker_.state() == WorkerState::failed) {
    if (!worker_.has_results()) restore();
    throw CommunicationError(worker_.failure());
  }
}

void UdpWorker::restore() {
  if (in_place_ != nullptr) std::memcpy(in_place_, copy_.data(), copy_.size());
}

void UdpWorker::leave() {
  std::vector<WorkerPacket> out;
  worker_.leave(out);
  send(out);
}

double pump(int socket, Address to, std::uint32_t job, std::uint64_t generation,
            std::uint16_t workers, std::uint16_t pool, std::uint16_t elements, std::uint64_t uses) {
  const std::size_t bytes = packet_bytes(elements);
  std::vector<std::vector<std::byte>> packets(std::size_t{pool} * workers,
                                              std::vector<std::byte>(bytes, std::byte{1}));
  std::vector<std::uint16_t> answers(pool, 0);
  std::vector<std::uint64_t> use(pool, 0);
  Batch batch(bytes + 64);
  Sender sender;
  std::uint64_t posted = 0, done = 0;
  const auto post = [&](std::uint16_t slot) {
    use[slot] = posted++;
    answers[slot] = 0;
    for (std::uint16_t w = 0; w < workers; ++w) {
      auto header = make_header(PacketKind::contribution);
      header.job = job;
      header.generation = generation;
      header.sequence = static_cast<std::uint32_t>(use[slot]);
      header.slot =
          static_cast<std::uint16_t>(slot | (use[slot] / pool % 2 != 0 ? kVersionBit : 0));
      header.worker = w;
      header.elements = elements;
      auto& packet = packets[std::size_t{slot} * workers + w];
      std::memcpy(packet.data(), &header, sizeof header);
      sender.add(to, packet.data(), packet.size());
    }
  };
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint16_t slot = 0; slot < pool && posted < uses; ++slot) post(slot);
  sender.flush(socket);
  // Slots are used in turn, so the slot follows from the sequence number.
  std::uint16_t next = 0;
  while (done < uses) {
    const int got = batch.receive(socket, MSG_WAITFORONE);
    if (got < 0) throw Error("the measurement lost packets: the socket's buffer is too small");
    for (int i = 0; i < got; ++i) {
      PacketHeader header{};
      if (!read_header(batch.packet(static_cast<std::size_t>(i)), header)) continue;
      const auto slot = static_cast<std::uint16_t>(header.slot & ~kVersionBit);
      if (slot < pool && header.sequence == static_cast<std::uint32_t>(use[slot])) ++answers[slot];
    }
    while (answers[next] >= workers) {
      ++done;
      answers[next] = 0;
      if (posted < uses) post(next);
      next = static_cast<std::uint16_t>((next + 1U) % pool);
      if (done >= uses) break;
    }
    sender.flush(socket);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace tacos::aggregation
