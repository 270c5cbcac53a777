// A hub on sockets: a thread, an epoll loop and a listening socket for each core.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "hub/hub.hpp"

namespace tacos::hub {

class SocketHub : public Hub {
 public:
  // Takes ownership of listening sockets, one per core. `pin`: bind each thread to a processor.
  SocketHub(const std::vector<int>& listening, bool pin);
  ~SocketHub() override;
  // Ends all threads and closes all sockets.
  void stop();

 protected:
  void run_on(std::size_t core, std::function<void(Core&)> what) override;

 private:
  struct Socket {
    int descriptor = -1;
    int connection = -1;
    bool writes = false, held = false, lingers = false;
    std::int64_t until_ms = 0;  // held or lingering until then
  };
  struct Loop {
    int epoll = -1, wake = -1, listening = -1;
    std::mutex mutex;
    std::vector<std::function<void(Core&)>> inbox;
    std::vector<Socket> sockets;     // by descriptor
    std::vector<int> by_connection;  // descriptors
    std::vector<int> waiting;        // descriptors that are held or linger
    std::size_t open = 0;
    bool ended = false;
    std::thread thread;
  };

  void run(std::size_t index);
  void accept_all(Loop& loop, Core& core);
  void read(Loop& loop, Core& core, int descriptor);
  void write(Loop& loop, Core& core, int descriptor);
  void flush(Loop& loop, Core& core);
  void watch(Loop& loop, Socket& socket);
  void close(Loop& loop, Core& core, int descriptor, const std::string& why);
  void linger(Loop& loop, Core& core, int descriptor);
  void look_at_waiting(Loop& loop, Core& core, std::int64_t now);

  std::vector<std::unique_ptr<Loop>> loops_;
  std::atomic<bool> stopping_{false};
};

}  // namespace tacos::hub
