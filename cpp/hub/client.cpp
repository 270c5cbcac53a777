#include "hub/client.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include "hub/pieces.hpp"
#include "runtime/tcp.hpp"
#include "support/index.hpp"

namespace tacos::hub {

namespace {

// Bytes read ahead: headers; values are read directly into their place.
constexpr std::size_t kBuffer = 4 << 10;

}  // namespace

Client::Client(const std::vector<std::int64_t>& sizes, const std::vector<int>& sockets,
               std::uint64_t job, std::uint32_t member, const std::array<std::uint8_t, 16>& key,
               Wire wire, int memory)
    : parts_(cut(sizes, static_cast<std::int32_t>(sockets.size()))), wire_(wire) {
  if (memory >= 0) {
    memory_ = Region::mapped(memory, at(parts_.elements) * 2 * sizeof(float));
    ::close(memory);
  }
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (epoll_ < 0 || wake_ < 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_create1");
  }
  links_.resize(sockets.size());
  for (std::size_t i = 0; i < links_.size(); ++i) {
    auto& link = links_[i];
    link.socket = sockets[i];
    link.buffer.resize(kBuffer);
    link.scratch.resize(kLargestPayload);
    fcntl(link.socket, F_SETFL, fcntl(link.socket, F_GETFL) | O_NONBLOCK);
    const int on = 1;
    setsockopt(link.socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Hello hello;
    hello.job = job;
    hello.member = member;
    hello.core = static_cast<std::uint32_t>(i);
    hello.key = key;
    Out out;
    out.frame.kind = Kind::hello;
    out.frame.bytes = sizeof hello;
    out.keep.reset(new std::byte[sizeof hello]);
    std::memcpy(out.keep.get(), &hello, sizeof hello);
    out.data = out.keep.get();
    link.out.push_back(std::move(out));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT;
    event.data.u32 = static_cast<std::uint32_t>(i);
    epoll_ctl(epoll_, EPOLL_CTL_ADD, link.socket, &event);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u32 = static_cast<std::uint32_t>(links_.size());
  epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
  thread_ = std::thread([this] { run(); });
}

Client::~Client() { close(); }

void Client::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closing_) return;
    closing_ = true;
    if (failure_.empty()) failure_ = "the connection to the hub is closed";
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
  thread_.join();
  for (const auto& link : links_) ::close(link.socket);
  ::close(epoll_);
  ::close(wake_);
}

std::string Client::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::uint64_t Client::submit(const Request& request) {
  if (request.key < 0 || at(request.key) + 1 >= parts_.first_chunk.size()) {
    invalid("there is no parameter " + std::to_string(request.key));
  }
  Submission submission;
  submission.request = request;
  const auto first = at(parts_.first_chunk[at(request.key)]);
  const auto last = at(parts_.first_chunk[at(request.key) + 1]);
  if (request.source != nullptr && request.kind == Kind::push && shares()) {
    for (auto i = first; i < last; ++i) {
      const auto& chunk = parts_.chunks[i];
      narrow(static_cast<std::byte*>(memory_.data()) + at(chunk.offset) * sizeof(float),
             request.source + chunk.first, wire_, at(chunk.count));
    }
  } else if (request.source != nullptr && request.kind == Kind::push && wire_ != Wire::float32) {
    const auto& end = parts_.chunks[last - 1];
    const auto elements = at(end.first) + at(end.count);
    submission.narrowed.reset(new std::byte[elements * 2]);
    narrow(submission.narrowed.get(), request.source, wire_, elements);
  }
  bool wakes = false;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw CommunicationError(failure_);
    submission.ticket = ++issued_;
    tickets_[submission.ticket].left = static_cast<std::int64_t>(last - first);
    wakes = submissions_.empty();
    submissions_.push_back(std::move(submission));
    if (wakes) {
      const std::uint64_t one = 1;
      [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof one);
    }
    return issued_;
  }
}

bool Client::wait(std::uint64_t timestamp, double patience_s) {
  std::unique_lock lock(mutex_);
  const auto over = [&] {
    const auto found = tickets_.find(timestamp);
    return found == tickets_.end() || found->second.left == 0;
  };
  if (!changed_.wait_for(lock, std::chrono::duration<double>(patience_s), over)) return false;
  const auto found = tickets_.find(timestamp);
  if (found == tickets_.end()) return true;  // an earlier call waited for it
  const std::string error = std::move(found->second.error);
  tickets_.erase(found);
  if (!error.empty()) throw CommunicationError(error);
  return true;
}

// --- in the thread

void Client::run() {
  while (true) {
    std::array<epoll_event, 64> events{};
    const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), -1);
    bool broken = false;
    for (int i = 0; i < count; ++i) {
      const auto which = events[at(i)].data.u32;
      if (which == links_.size()) {
        std::uint64_t number = 0;
        [[maybe_unused]] const auto got = ::read(wake_, &number, sizeof number);
        take_submissions();
        continue;
      }
      const auto what = events[at(i)].events;
      if (what & (EPOLLIN | EPOLLHUP | EPOLLERR)) broken = broken || !read(links_[which]);
      if (what & EPOLLOUT) broken = broken || !write(links_[which]);
    }
    const std::lock_guard lock(mutex_);
    if (closing_ || broken) return;
  }
}

void Client::take_submissions() {
  std::vector<Submission> submissions;
  {
    const std::lock_guard lock(mutex_);
    submissions = std::exchange(submissions_, {});
  }
  for (const auto& submission : submissions) queue(submission);
  for (auto& link : links_) {
    if (!link.out.empty() && !link.writes && !write(link)) return;
  }
}

void Client::queue(const Submission& submission) {
  const auto& request = submission.request;
  const auto first = parts_.first_chunk[at(request.key)];
  const auto last = parts_.first_chunk[at(request.key) + 1];
  for (auto i = first; i < last; ++i) {
    const auto& chunk = parts_.chunks[at(i)];
    if (free_.empty()) {
      free_.push_back(static_cast<std::uint32_t>(pending_.size()));
      pending_.emplace_back();
    }
    const auto tag = free_.back();
    free_.pop_back();
    pending_[tag] = {submission.ticket, request.target, i};
    Out out;
    auto& frame = out.frame;
    frame.kind = request.kind;
    frame.flags = static_cast<std::uint8_t>(request.slot << kSlotShift);
    frame.wire = request.kind == Kind::push ? wire_ : Wire::float32;  // puts are never rounded
    frame.chunk = static_cast<std::uint32_t>(i);
    frame.tag = tag;
    frame.step = request.step;
    frame.rate = request.rate;
    if (request.kind == Kind::push) {
      if (request.target == nullptr) frame.flags |= kQuiet;
      if (request.source == nullptr) frame.flags |= kEmpty;
      if (shares()) frame.flags |= kShared;
    }
    if (request.source != nullptr && (frame.flags & kShared) == 0) {
      frame.bytes = static_cast<std::uint32_t>(at(chunk.count) * size_of(frame.wire));
      out.data = submission.narrowed
                     ? submission.narrowed.get() + at(chunk.first) * 2
                     : reinterpret_cast<const std::byte*>(request.source + chunk.first);
      out.keep = submission.narrowed;
    }
    links_[at(chunk.core)].out.push_back(std::move(out));
  }
}

void Client::watch(Link& link) {
  epoll_event event{};
  event.events = EPOLLIN | (link.writes ? EPOLLOUT : 0U);
  event.data.u32 = static_cast<std::uint32_t>(&link - links_.data());
  epoll_ctl(epoll_, EPOLL_CTL_MOD, link.socket, &event);
}

bool Client::write(Link& link) {
  while (!link.out.empty()) {
    std::array<iovec, 64> pieces{};
    const auto count = list_pieces(link.out, link.done, pieces);
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const auto some = sendmsg(link.socket, &message, MSG_NOSIGNAL);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0 && errno == EAGAIN) break;
    if (some < 0) {
      const auto why = std::generic_category().message(errno);
      if (!read(link)) return false;  // the hub may have sent the reason
      fail("the connection to the hub broke: " + why);
      return false;
    }
    sent_ += static_cast<std::uint64_t>(some);
    link.done += static_cast<std::size_t>(some);
    while (!link.out.empty() && link.done >= link.out.front().whole()) {
      link.done -= link.out.front().whole();
      link.out.pop_front();
    }
  }
  if (const bool more = !link.out.empty(); more != link.writes) {
    link.writes = more;
    watch(link);
  }
  return true;
}

// Reads everything available; returns false at the end of the connection.
bool Client::read(Link& link) {
  while (true) {
    const auto ahead = link.end - link.begin;
    if (!link.within && ahead >= sizeof(Frame)) {
      begin_frame(link);
      if (!failure().empty()) return false;
    } else if (link.within && link.left > 0 && ahead > 0) {
      const auto some = std::min(ahead, link.left);
      std::memcpy(link.into, link.buffer.data() + link.begin, some);
      link.into += some;
      link.begin += some;
      link.left -= some;
    } else if (link.within && link.left == 0 && ahead >= link.padding) {
      link.begin += link.padding;
      link.within = false;
      end_frame(link);
      if (!failure().empty()) return false;
    } else {
      if (link.begin > 0) {
        std::memmove(link.buffer.data(), link.buffer.data() + link.begin, ahead);
        link.end = ahead;
        link.begin = 0;
      }
      std::array<iovec, 2> pieces{};
      int count = 0;
      const auto left = link.within ? link.left : 0;
      if (left > 0) pieces[at(count++)] = {link.into, left};
      pieces[at(count++)] = {link.buffer.data() + link.end, link.buffer.size() - link.end};
      const auto got = readv(link.socket, pieces.data(), count);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return true;
      if (got <= 0) {
        fail(got == 0
                 ? "the hub closed the connection"
                 : "the connection to the hub broke: " + std::generic_category().message(errno));
        return false;
      }
      received_ += static_cast<std::uint64_t>(got);
      const auto direct = std::min(left, static_cast<std::size_t>(got));
      link.into += direct;
      link.left -= direct;
      link.end += static_cast<std::size_t>(got) - direct;
    }
  }
}

void Client::begin_frame(Link& link) {
  std::memcpy(&link.frame, link.buffer.data() + link.begin, sizeof(Frame));
  link.begin += sizeof(Frame);
  const auto& frame = link.frame;
  const bool answers = frame.kind == Kind::values || frame.kind == Kind::done;
  const bool known = !answers || (frame.tag < pending_.size() && pending_[frame.tag].chunk >= 0);
  const auto most = answers && known ? at(parts_.chunks[at(pending_[frame.tag].chunk)].count) *
                                           size_of(frame.wire)
                                     : kLargestPayload;
  if (frame.magic != kMagic || !known || frame.wire > Wire::float16 || frame.bytes > most) {
    return fail("the hub sent a malformed frame");
  }
  link.within = true;
  link.left = frame.bytes;
  link.padding = padded(frame.bytes) - frame.bytes;
  link.into = link.scratch.data();
  if (frame.kind == Kind::values && frame.wire == Wire::float32 && frame.bytes > 0) {
    const auto& pending = pending_[frame.tag];
    if (pending.target != nullptr) {
      link.into =
          reinterpret_cast<std::byte*>(pending.target + parts_.chunks[at(pending.chunk)].first);
    }
  }
}

void Client::end_frame(Link& link) {
  const auto& frame = link.frame;
  if (frame.kind == Kind::welcome) {
    ++welcomed_;
    return;
  }
  if (frame.kind == Kind::error) {
    const std::string why(reinterpret_cast<const char*>(link.scratch.data()), frame.bytes);
    if ((frame.flags & kFatal) != 0) return fail(why);
    if (frame.tag >= pending_.size() || pending_[frame.tag].chunk < 0) return fail(why);
    const auto ticket = pending_[frame.tag].ticket;
    pending_[frame.tag].chunk = -1;
    free_.push_back(frame.tag);
    return complete(ticket, why);
  }
  const auto pending = pending_[frame.tag];
  const auto& chunk = parts_.chunks[at(pending.chunk)];
  if (frame.kind == Kind::values && pending.target != nullptr) {
    float* const target = pending.target + chunk.first;
    if ((frame.flags & kShared) != 0 && shares()) {
      const auto* const half = static_cast<const std::byte*>(memory_.data()) + memory_.bytes() / 2;
      take(target, half + at(chunk.offset) * sizeof(float), frame.wire, at(chunk.count), true);
    } else if (frame.wire != Wire::float32) {
      take(target, link.scratch.data(), frame.wire, at(chunk.count), true);
    }
    version_ = frame.step;
    updates_ = frame.rate >= 0 && frame.rate <= 0x1p53 ? static_cast<std::uint64_t>(frame.rate) : 0;
  }
  pending_[frame.tag].chunk = -1;
  free_.push_back(frame.tag);
  complete(pending.ticket, "");
}

void Client::complete(std::uint64_t ticket, const std::string& error) {
  const std::lock_guard lock(mutex_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  if (found->second.error.empty()) found->second.error = error;
  if (--found->second.left == 0) changed_.notify_all();
}

void Client::fail(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = why;
  for (auto& [number, ticket] : tickets_) {
    if (ticket.left == 0) continue;
    ticket.left = 0;
    ticket.error = failure_;
  }
  changed_.notify_all();
}

}  // namespace tacos::hub
