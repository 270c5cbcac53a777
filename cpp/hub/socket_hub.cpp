#include "hub/socket_hub.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "support/index.hpp"

namespace tacos::hub {

namespace {

constexpr int kWaitMs = 100;                // longest wait for events
constexpr std::int64_t kTickMs = 100;       // between checks for late members
constexpr std::int64_t kLingerMs = 1000;    // for a client to read why its connection ends
constexpr std::size_t kMostSockets = 1024;  // per core
// Reads of one connection before its answers are sent, while they are still in the cache.
constexpr int kReads = 1;

std::int64_t clock_ms() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

std::string reason(int error) { return std::generic_category().message(error); }

void pin_to(std::size_t index) {
  cpu_set_t mine, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) return;
  const auto count = static_cast<std::size_t>(CPU_COUNT(&mine));
  std::size_t place = index % std::max<std::size_t>(count, 1);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mine)) continue;
    if (place-- != 0) continue;
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
}

}  // namespace

SocketHub::SocketHub(const std::vector<int>& listening, bool pin)
    : Hub(static_cast<std::int32_t>(listening.size())) {
  for (const int descriptor : listening) {
    auto loop = std::make_unique<Loop>();
    loop->listening = descriptor;
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->epoll < 0 || loop->wake < 0) {
      throw std::system_error(errno, std::generic_category(), "epoll_create1");
    }
    fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
    for (const int each : {descriptor, loop->wake}) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = each;
      epoll_ctl(loop->epoll, EPOLL_CTL_ADD, each, &event);
    }
    loops_.push_back(std::move(loop));
  }
  for (std::size_t i = 0; i < loops_.size(); ++i) {
    loops_[i]->thread = std::thread([this, i, pin] {
      if (pin) pin_to(i);
      run(i);
    });
  }
}

SocketHub::~SocketHub() { stop(); }

void SocketHub::stop() {
  if (stopping_.exchange(true)) return;
  for (const auto& loop : loops_) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(loop->wake, &one, sizeof one);
  }
  for (const auto& loop : loops_) {
    if (loop->thread.joinable()) loop->thread.join();
    for (const auto& socket : loop->sockets) {
      if (socket.descriptor >= 0) ::close(socket.descriptor);
    }
    ::close(loop->listening);
    ::close(loop->wake);
    ::close(loop->epoll);
  }
}

void SocketHub::run_on(std::size_t core, std::function<void(Core&)> what) {
  auto& loop = *loops_[core];
  {
    const std::lock_guard lock(loop.mutex);
    if (!loop.ended) {
      const bool first = loop.inbox.empty();
      loop.inbox.push_back(std::move(what));
      const std::uint64_t one = 1;
      if (first) [[maybe_unused]]
        const auto written = ::write(loop.wake, &one, sizeof one);
      return;
    }
  }
  what(*cores_[core]);
}

void SocketHub::run(std::size_t index) {
  auto& loop = *loops_[index];
  auto& core = *cores_[index];
  std::int64_t ticked = 0;
  while (true) {
    std::array<epoll_event, 64> events{};
    const int wait = loop.waiting.empty() ? kWaitMs : 5;
    const int count = epoll_wait(loop.epoll, events.data(), static_cast<int>(events.size()), wait);
    const auto now = clock_ms();
    core.now(now);
    std::vector<std::function<void(Core&)>> commands;
    {
      const std::lock_guard lock(loop.mutex);
      commands = std::exchange(loop.inbox, {});
      if (stopping_ && commands.empty()) {
        loop.ended = true;
        return;
      }
    }
    for (const auto& command : commands) command(core);
    for (int i = 0; i < count; ++i) {
      const auto what = events[at(i)].events;
      const int descriptor = events[at(i)].data.fd;
      if (descriptor == loop.listening) {
        accept_all(loop, core);
      } else if (descriptor == loop.wake) {
        std::uint64_t number = 0;
        [[maybe_unused]] const auto got = ::read(loop.wake, &number, sizeof number);
      } else {
        if (what & EPOLLOUT) write(loop, core, descriptor);
        if (what & (EPOLLIN | EPOLLHUP | EPOLLERR)) read(loop, core, descriptor);
      }
    }
    if (now - ticked >= kTickMs) {
      ticked = now;
      core.tick(now);
    }
    if (!loop.waiting.empty()) look_at_waiting(loop, core, now);
    flush(loop, core);
    if (!core.losses.empty()) {
      relay_losses(index);
      flush(loop, core);
    }
  }
}

void SocketHub::accept_all(Loop& loop, Core& core) {
  while (true) {
    const int descriptor = accept4(loop.listening, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (descriptor < 0) return;  // no more connections, or too many open files: clients retry
    if (loop.open >= kMostSockets) {
      ::close(descriptor);
      continue;
    }
    const int on = 1;
    setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (loop.sockets.size() <= at(descriptor)) loop.sockets.resize(at(descriptor) + 1);
    auto& socket = loop.sockets[at(descriptor)];
    socket = {};
    socket.descriptor = descriptor;
    socket.connection = core.open();
    if (loop.by_connection.size() <= at(socket.connection)) {
      loop.by_connection.resize(at(socket.connection) + 1, -1);
    }
    loop.by_connection[at(socket.connection)] = descriptor;
    ++loop.open;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    epoll_ctl(loop.epoll, EPOLL_CTL_ADD, descriptor, &event);
  }
}

void SocketHub::watch(Loop& loop, Socket& socket) {
  epoll_event event{};
  event.events = (socket.held ? 0U : EPOLLIN) | (socket.writes ? EPOLLOUT : 0U);
  event.data.fd = socket.descriptor;
  epoll_ctl(loop.epoll, EPOLL_CTL_MOD, socket.descriptor, &event);
}

void SocketHub::read(Loop& loop, Core& core, int descriptor) {
  auto& socket = loop.sockets[at(descriptor)];
  if (socket.descriptor < 0) return;  // closed by an earlier event
  for (int turn = 0; turn < kReads; ++turn) {
    if (socket.lingers) {
      std::array<char, 4096> ignored{};
      const auto some = recv(descriptor, ignored.data(), ignored.size(), 0);
      if (some == 0 || (some < 0 && errno != EAGAIN)) close(loop, core, descriptor, "");
      if (some <= 0) return;
      continue;
    }
    const auto space = core.space(socket.connection);
    const auto some = recv(descriptor, space.data(), space.size(), 0);
    if (some < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (some <= 0) {
      close(loop, core, descriptor,
            some == 0 ? "it closed its connection" : "its connection broke: " + reason(errno));
      return;
    }
    core.received(socket.connection, static_cast<std::size_t>(some));
    if (core.ending(socket.connection)) return linger(loop, core, descriptor);
    if (const auto until = core.held_until_ms(socket.connection); until > clock_ms()) {
      socket.held = true;
      socket.until_ms = until;
      loop.waiting.push_back(descriptor);
      watch(loop, socket);
      return;
    }
    if (static_cast<std::size_t>(some) < space.size()) return;
  }
}

void SocketHub::write(Loop& loop, Core& core, int descriptor) {
  auto& socket = loop.sockets[at(descriptor)];
  if (socket.descriptor < 0 || socket.connection < 0) return;
  std::array<iovec, 64> pieces{};
  while (true) {
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = core.front(socket.connection, pieces);
    if (message.msg_iovlen == 0) break;
    const auto some = sendmsg(descriptor, &message, MSG_NOSIGNAL);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0 && errno == EAGAIN) break;
    if (some < 0) {
      close(loop, core, descriptor, "its connection broke: " + reason(errno));
      return;
    }
    core.sent(socket.connection, static_cast<std::size_t>(some));
  }
  if (const bool more = !core.idle(socket.connection); more != socket.writes) {
    socket.writes = more;
    watch(loop, socket);
  }
}

void SocketHub::flush(Loop& loop, Core& core) {
  for (const int connection : core.take_touched()) {
    if (!core.exists(connection)) continue;
    const int descriptor = loop.by_connection[at(connection)];
    if (core.ending(connection)) {
      linger(loop, core, descriptor);
    } else {
      write(loop, core, descriptor);
    }
  }
}

// Sends what is queued and waits up to a second for the client to read it. Closing a socket with unread input at once
// would discard the queued answers.
void SocketHub::linger(Loop& loop, Core& core, int descriptor) {
  auto& socket = loop.sockets[at(descriptor)];
  if (socket.descriptor < 0 || socket.lingers) return;
  write(loop, core, descriptor);
  if (socket.descriptor < 0) return;
  core.closed(socket.connection, "it broke the protocol, or did not read its answers");
  socket.connection = -1;
  socket.lingers = true;
  socket.held = socket.writes = false;
  socket.until_ms = clock_ms() + kLingerMs;
  shutdown(descriptor, SHUT_WR);
  loop.waiting.push_back(descriptor);
  watch(loop, socket);
}

void SocketHub::close(Loop& loop, Core& core, int descriptor, const std::string& why) {
  auto& socket = loop.sockets[at(descriptor)];
  if (socket.connection >= 0) core.closed(socket.connection, why);
  ::close(descriptor);
  socket = {};
  --loop.open;
}

void SocketHub::look_at_waiting(Loop& loop, Core& core, std::int64_t now) {
  auto waiting = std::exchange(loop.waiting, {});
  for (const int descriptor : waiting) {
    auto& socket = loop.sockets[at(descriptor)];
    if (socket.descriptor < 0 || (!socket.held && !socket.lingers)) continue;
    if (now < socket.until_ms) {
      loop.waiting.push_back(descriptor);
    } else if (socket.lingers) {
      close(loop, core, descriptor, "");
    } else {
      socket.held = false;
      watch(loop, socket);
    }
  }
}

}  // namespace tacos::hub
