// Switches and workers over UDP: batches of datagrams by recvmmsg and sendmmsg.
//
// A switch has one thread and one port per core; each thread owns a range of slots. The first thread also handles joins, and
// passes jobs to the others. Results are sent from the memory of their slots, without a copy.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "aggregation/kernel.hpp"
#include "aggregation/switch.hpp"
#include "aggregation/worker.hpp"

namespace tacos::aggregation {

Address address_of(const std::string& ipv4, std::uint16_t port);  // throws std::invalid_argument

struct UdpSwitchOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  // the first of `shards`; 0: any
  std::uint16_t shards = 1;
  SwitchLimits limits;
  std::vector<Token> tokens;
  Address parent = 0;  // 0: none
  std::uint64_t members = 0;
  double loss_in = 0, loss_out = 0;  // probabilities with which datagrams are dropped on purpose
  std::uint64_t seed = 0;
  bool echo = false;  // send every datagram back: a baseline for measurements
};

class UdpSwitch {
 public:
  explicit UdpSwitch(const UdpSwitchOptions& options);  // throws Error if it cannot use the address
  ~UdpSwitch();
  UdpSwitch(const UdpSwitch&) = delete;
  UdpSwitch& operator=(const UdpSwitch&) = delete;

  std::uint16_t port() const { return port_; }
  // Leaves aggregation to the kernel programs at an interface. Call it before `start`; needs one shard.
  void use_kernel(const std::string& interface, const KernelTables& tables);
  void start();
  void stop();                  // from any thread; ends the threads
  std::string failure() const;  // why a thread ended early, or empty
  std::string stats() const;    // JSON
  double busy_s() const;        // processor time of all threads

 private:
  struct Shard;
  void serve(Shard& shard);
  void carry_changes(Shard& first);

  UdpSwitchOptions options_;
  std::uint16_t port_ = 0;
  std::uint64_t seed_ = 0;
  std::unique_ptr<Kernel> kernel_;
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stopping_ = false;
  std::uint64_t started_us_ = 0;
};

class UdpWorker {
 public:
  // `bind`: an IPv4 address of this machine to send from, or empty.
  UdpWorker(Address switch_address, const std::string& bind, const WorkerSettings& settings);
  ~UdpWorker();
  UdpWorker(const UdpWorker&) = delete;
  UdpWorker& operator=(const UdpWorker&) = delete;

  // Sums the elements of all workers. `idle` is called from time to time and may throw. If `to` is `from`, a failed
  // operation restores it, unless all results had arrived (`has_results`). Throws CommunicationError.
  void all_reduce(const void* from, void* to, std::uint64_t elements, DType dtype, bool average,
                  const std::function<void()>& idle);
  void restore();  // puts back the inputs of the last operation, if it ran in place
  void leave();
  Worker& worker() { return worker_; }

 private:
  void send(const std::vector<WorkerPacket>& packets);
  bool refused(std::uint64_t time_us);

  Address switch_;
  Worker worker_;
  int socket_ = -1;
  std::uint64_t refused_us_ = 0;  // when the switch's machine first refused a packet, or 0
  std::size_t buffer_bytes_;
  std::vector<std::byte> copy_;
  std::byte* in_place_ = nullptr;
};

// Measures a switch, or an echo with the same packets: sends the contributions of `workers` workers through one socket
// as fast as answers arrive, and returns the seconds until all `uses` of slots were answered.
double pump(int socket, Address to, std::uint32_t job, std::uint64_t generation,
            std::uint16_t workers, std::uint16_t pool, std::uint16_t elements, std::uint64_t uses);

}  // namespace tacos::aggregation
