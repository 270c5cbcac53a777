// A worker's side of the optimizer service: requests with timestamps over one connection per core.
//
// A thread moves the data, so the caller can push a gradient and continue computing. The memory of a push or
// pull must stay valid and unchanged until wait() returns.
#pragma once

#include <sys/uio.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "hub/job.hpp"

namespace tacos::hub {

struct Request {
  Kind kind = Kind::push;
  std::int32_t key = 0;
  const float* source = nullptr;  // null in a push: no gradient
  float* target = nullptr;        // null in a push: do not send new weights back
  std::uint64_t step = 0;
  double rate = 0.0;
  std::uint8_t slot = 0;
};

class Client {
 public:
  // Takes ownership of connected sockets, one per core, and of a descriptor of shared memory, or -1.
  Client(const std::vector<std::int64_t>& sizes, const std::vector<int>& sockets, std::uint64_t job,
         std::uint32_t member, const std::array<std::uint8_t, 16>& key, Wire wire, int memory);
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client();

  // Begins a request and returns its timestamp. Throws CommunicationError if the connection has failed.
  std::uint64_t submit(const Request& request);
  // Waits for a request; returns false on timeout. Throws CommunicationError, with the reason, if the request failed.
  bool wait(std::uint64_t timestamp, double patience_s);
  // The version of the last pull, and its number of updates.
  std::uint64_t version() const { return version_; }
  std::uint64_t updates() const { return updates_; }
  std::uint64_t sent() const { return sent_; }          // bytes, with frames
  std::uint64_t received() const { return received_; }  // bytes, with frames
  std::string failure() const;
  bool shares() const { return memory_.data() != nullptr; }
  void close();

 private:
  struct Ticket {
    std::int64_t left = 0;
    std::string error;
  };
  struct Submission {  // a request on its way to the thread
    Request request;
    std::uint64_t ticket = 0;
    std::shared_ptr<std::byte[]> narrowed;
  };
  struct Pending {
    std::uint64_t ticket = 0;
    float* target = nullptr;
    std::int32_t chunk = -1;
  };
  struct Out {
    Frame frame;
    const std::byte* data = nullptr;
    std::shared_ptr<std::byte[]> keep;
    std::size_t whole() const { return sizeof(Frame) + padded(frame.bytes); }
  };
  struct Link {
    int socket = -1;
    std::deque<Out> out;
    std::size_t done = 0;
    bool writes = true;
    std::vector<std::byte> buffer;
    std::size_t begin = 0, end = 0;
    bool within = false;
    Frame frame;
    std::size_t left = 0, padding = 0;
    std::byte* into = nullptr;
    std::vector<std::byte> scratch;
  };

  void run();
  void take_submissions();
  void queue(const Submission& submission);
  bool write(Link& link);
  bool read(Link& link);
  void begin_frame(Link& link);
  void end_frame(Link& link);
  void complete(std::uint64_t ticket, const std::string& error);
  void fail(const std::string& why);
  void watch(Link& link);

  Cut parts_;
  Wire wire_;
  Region memory_;
  std::vector<Link> links_;
  int epoll_ = -1, wake_ = -1;
  std::vector<Pending> pending_;
  std::vector<std::uint32_t> free_;
  std::size_t welcomed_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Submission> submissions_;
  std::map<std::uint64_t, Ticket> tickets_;
  std::uint64_t issued_ = 0;
  std::string failure_;
  bool closing_ = false;
  std::atomic<std::uint64_t> version_{0}, updates_{0}, sent_{0}, received_{0};
  std::thread thread_;
};

}  // namespace tacos::hub
