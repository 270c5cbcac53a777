// Runs the executors of ranks over TCP.
//
// Two ranks have one connection per channel, which carries data both ways. It also carries notices (a rank has failed; is a
// rank alive?), which overtake data that have not begun to leave. One thread serves all connections of a rank: sockets are
// non-blocking, and epoll reports changes. Arriving data are stored in place, or added up block by block, if the step that
// receives them may run; otherwise they are staged in memory. So a rank always reads, and full sockets cannot cause a
// deadlock. Only data of a later call wait in the socket; if they wait for long, they are read into memory, to find the notices
// behind them.
//
// Every message has a header with its call and step. If ranks disagree about a call, it fails with an error that
// says so.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/connection.hpp"
#include "runtime/rank_executor.hpp"
#include "support/error.hpp"

namespace tacos {

// A peer failed, or could not be reached in time; the message names it.
class CommunicationError : public Error {
 public:
  using Error::Error;
};

class Endpoint {
 public:
  // `timeout_s`: how long a call may make no progress. `waiting` is called when this rank waits for one that is not in the
  // call: first after `report_s`, then after twice that time, and so on.
  using Waiting = std::function<void(NodeId peer, const std::string& collective, double seconds)>;
  Endpoint(NodeId rank, NodeId size, double timeout_s, double report_s = 30.0,
           Waiting waiting = {});
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Takes ownership of a connected socket.
  void add(Port port, int socket);
  bool has(Port port) const { return by_port_.contains(port); }
  // Sets the name of an algorithm in messages, such as "broadcast from rank 2".
  void describe(std::int32_t algorithm, const std::string& name) { names_[algorithm] = name; }
  // Excludes calls of an algorithm from the count of the job's collectives.
  void hide(std::int32_t algorithm) { hidden_.insert(algorithm); }

  // Runs one call of the algorithm with this number, which is the same on all ranks. `idle` is called from time to
  // time and may throw; this ends the call on all ranks, and no endpoint can be used afterwards. `joint`: each rank's
  // result depends on the data of every rank; at the end of such a call, either all ranks know of a meeting or none does.
  // Returns kNews if this rank observed something new, and kMeeting if the ranks are to meet.
  int run(RankExecutor& executor, std::int32_t algorithm, const Call& call, bool joint,
          const std::function<void()>& idle);
  static constexpr int kNews = 1, kMeeting = 2;
  // Call it between calls, while this rank is `doing` something that all ranks must do before a call of this algorithm.
  // Returns a message that names a rank which will not take part, because it has left or runs another call; or "".
  std::string watch(std::int32_t algorithm, const std::string& doing);
  // Ends the current call and all later ones, on this rank and then on all ranks. Call it from any thread.
  void interrupt(const std::string& why);
  // Tells all peers that this rank gives up, with the reason.
  void abort(const std::string& why);
  const std::string& failure() const { return failure_; }  // empty: none so far

  // --- observations: tcp_figures.cpp. Call these from any thread, unless stated otherwise.
  // From now on, a dead link ends a call at once, so that it can be repeated without the link; a slow link calls a meeting.
  void heal() { healing_ = true; }
  void watch_links(bool whether) { watching_ = whether; }  // off: to measure its cost
  void call_meeting() { wanted_ = true; }                  // after the next joint call
  // The dead link, from one rank to another; -1: none.
  std::pair<NodeId, NodeId> broken() const { return broken_; }
  // Sets the expected speed of the link from or to a peer, in bytes per second; see LinkWatch. Only between calls.
  void expect(Port port, bool outgoing, double rate, bool known);
  struct LinkFigures {
    Port port;
    bool outgoing = false, local = false;
    std::int64_t messages = 0, bytes = 0;
    double waited_s = 0, rate = 0, usual = 0;  // bytes per second
    LinkState state = LinkState::usual;
  };
  std::vector<LinkFigures> links() const;
  std::vector<std::pair<NodeId, RankWatch::Peer>> peers() const;
  double away_s() const;
  struct CallRecord {
    std::uint32_t call = 0;
    std::int32_t algorithm = 0;
    std::int64_t count = 0;
    std::uint8_t dtype = 0, op = 0;
    bool listed = false;            // whether it is a collective of the job
    double begin_s = 0, end_s = 0;  // steady clock; end 0: it runs or has failed
    // Seconds spent waiting for each peer, once the call has ended or failed.
    std::vector<std::pair<NodeId, double>> waited;
    // Ranks that steps wait for, at the last check.
    std::vector<std::pair<NodeId, std::string>> needs;
  };
  std::vector<CallRecord> calls() const;           // the last calls, oldest first
  std::int64_t listed() const { return listed_; }  // collectives of the job that were begun
  void close();  // if called within a call, as a signal handler may do, takes effect at its end

 private:
  using Clock = std::chrono::steady_clock;

  void look_up(const RankExecutor& executor);
  void check_usable();
  void carry_out();
  bool all_sent() const;
  bool take_events(int wait_ms);  // false: there were no events
  void wait_for_events(const std::function<void()>& idle);
  void note_progress();
  void check_progress();
  void ask(Connection& peer);
  MessageHeader header_of_call() const;
  // --- one connection
  void post(Connection& to, const MessageHeader& header, std::vector<iovec> pieces,
            std::int32_t step);
  void flush(Connection& connection);
  void receive(Connection& connection);
  void hear_parked();
  void look_past(Connection& connection);
  bool begin_message(Connection& connection);  // false: it belongs to a later call and waits
  void notice(Connection& connection, const MessageHeader& header, const std::string& text);
  bool store(Connection& connection);
  void release_staged(std::int32_t step);
  std::size_t fill(Connection& connection);
  std::size_t read_pieces(Connection& connection, const std::vector<iovec>& pieces);
  void check_end(const Connection& connection);
  void end_message(Connection& connection);

  // --- observations
  void begin_record();
  void end_record(bool whole);
  void note_needs();
  void note_begin(Connection& connection);
  void note_end(Connection& connection);
  void note_sent();
  void find_dead_links();

  [[noreturn]] void lost(const Connection& connection, int error);
  [[noreturn]] void fail(const std::string& why);
  void ask_all(Clock::duration until_judged);
  std::string name_of_algorithm(std::int32_t algorithm) const;
  std::string what_runs(const MessageHeader& header) const;  // "all-reduce of 40 elements of ..."
  [[noreturn]] void disagree(NodeId peer, const MessageHeader& theirs);
  std::string purpose(std::int32_t step) const;  // "rank 2, thread 0, step 3, which receives ..."

  NodeId rank_, size_;
  Clock::duration timeout_, report_;
  Waiting waiting_;
  std::map<std::int32_t, std::string> names_;
  std::set<std::int32_t> hidden_;
  pid_t process_;  // a forked process must not use its parent's sockets
  int epoll_ = -1;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::map<Port, Connection*> by_port_;
  std::string failure_;
  std::mutex interruption_lock_;
  std::string interruption_;
  std::atomic<bool> interrupted_ = false;
  bool closing_ = false;

  // The call that runs.
  RankExecutor* executor_ = nullptr;
  std::uint32_t call_ = 0;
  std::int32_t algorithm_ = 0;
  std::vector<Connection*> out_, in_;  // per step: connections that it sends to and receives from
  std::vector<Connection*> staged_;    // per step: the connection that holds its early data
  std::uint64_t bound_to_ = 0;         // the executor that out_ and in_ belong to
  Clock::time_point progress_, idle_;
  // Times after progress_: the next report, the next judgement.
  Clock::duration reported_{}, judged_{};
  std::vector<Connection*> unanswered_;
  bool asking_ = false, curious_ = false;
  // Observations.
  bool healing_ = false, watching_ = true;
  bool carrying_ = false;  // within carry_out()
  std::atomic<bool> wanted_ = false;
  bool meeting_ = false, news_ = false;
  std::pair<NodeId, NodeId> broken_{-1, -1};
  std::uint32_t away_us_ = 0;
  Clock::time_point began_, ended_;            // start of this call, end of the last one
  Clock::time_point asked_;                    // when the kernel was last asked about sent data
  std::int32_t sent_by_ = 0;                   // the algorithm of the last call
  std::vector<Clock::time_point> receivable_;  // per step: since when it could receive
  RankWatch ranks_;
  mutable std::mutex records_lock_;
  std::vector<CallRecord> records_;  // a ring buffer
  Seen<std::int64_t> listed_;
  // Between calls: questions of peers about the next one.
  std::vector<std::pair<NodeId, MessageHeader>> heard_;
};

}  // namespace tacos
