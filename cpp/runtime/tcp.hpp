// Runs the executors of ranks over TCP.
//
// Two ranks have a connection per channel, which carries data both ways, and notices (a rank has failed, is it still
// there) that overtake data which have not begun to leave. One thread serves all connections of a rank: sockets are
// non-blocking and reported by epoll when they change. What arrives is stored in place if the step that takes it in may run,
// added up block by block, and kept aside if the step may not run yet; so a rank always reads, and no cycle of full sockets can
// form. Only data of a later call have to wait in the socket; if they do so for long, they are read into memory for the sake
// of notices behind them.
//
// Every message has a header that says which call and which step it belongs to. Ranks that disagree
// get an error that says so.
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
  // `timeout_s`: for how long a call may make no progress. `report_s`: after how long `waiting` first hears of a rank that
  // this one waits for and that is not in the call; then at twice that time, and so on.
  using Waiting = std::function<void(NodeId peer, const std::string& collective, double seconds)>;
  Endpoint(NodeId rank, NodeId size, double timeout_s, double report_s = 30.0,
           Waiting waiting = {});
  ~Endpoint();
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  // Takes a connected socket over.
  void add(Port port, int socket);
  bool has(Port port) const { return by_port_.contains(port); }
  // How messages name the algorithm with this number: "broadcast from rank 2".
  void describe(std::int32_t algorithm, const std::string& name) { names_[algorithm] = name; }
  // Calls of the algorithm with this number are not collectives of the job, and are not counted as such.
  void hide(std::int32_t algorithm) { hidden_.insert(algorithm); }

  // Runs one call of the algorithm with this number, the same on all ranks. `idle` is called now and
  // then and may throw, which ends the call, and with it the use of the endpoint, on all ranks. `joint`: what each rank
  // gets depends on what every rank gives; at the end of such a call all ranks know of a meeting, or none does.
  // Returns kNews if something new was noticed here, and kMeeting if the ranks are to meet.
  int run(RankExecutor& executor, std::int32_t algorithm, const Call& call, bool joint,
          const std::function<void()>& idle);
  static constexpr int kNews = 1, kMeeting = 2;
  // Between calls, while this rank is `doing` something that all must do before a call of the algorithm
  // with this number: names the rank it waits for in vain, which has left or runs another call. Empty: none.
  std::string watch(std::int32_t algorithm, const std::string& doing);
  // Ends the call that runs and all later ones, here and then on all ranks; from any thread.
  void interrupt(const std::string& why);
  // Tells all peers that this rank gives up, and why.
  void abort(const std::string& why);
  const std::string& failure() const { return failure_; }  // empty: none so far

  // --- what was noticed: tcp_figures.cpp. From any thread, except where it says otherwise.
  // From now on a dead link ends a call at once, so that it can be repeated without the link, and a slow one calls a meeting.
  void heal() { healing_ = true; }
  void watch_links(bool whether) { watching_ = whether; }  // to find out what it costs
  void call_meeting() { wanted_ = true; }                  // after the next joint call
  // The link that was found dead, from one rank to another; -1: none.
  std::pair<NodeId, NodeId> broken() const { return broken_; }
  // What the link from a peer, or to it, should carry, in bytes per second, see LinkWatch; between calls.
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
    bool listed = false;            // a collective of the job
    double begin_s = 0, end_s = 0;  // of the steady clock; end 0: it runs or failed
    // Seconds for each peer, once it has ended or failed.
    std::vector<std::pair<NodeId, double>> waited;
    // Ranks that steps wait for, as last looked at.
    std::vector<std::pair<NodeId, std::string>> needs;
  };
  std::vector<CallRecord> calls() const;           // the last ones, oldest first
  std::int64_t listed() const { return listed_; }  // collectives of the job that were begun
  void close();  // within a call, as a signal's handler may do: at its end

 private:
  using Clock = std::chrono::steady_clock;

  void look_up(const RankExecutor& executor);
  void check_usable();
  void carry_out();
  bool all_sent() const;
  bool take_events(int wait_ms);  // false: there were none
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
  bool begin_message(Connection& connection);  // false: it has to wait for a later call
  void notice(Connection& connection, const MessageHeader& header, const std::string& text);
  bool store(Connection& connection);
  void release_staged(std::int32_t step);
  std::size_t fill(Connection& connection);
  std::size_t read_pieces(Connection& connection, const std::vector<iovec>& pieces);
  void check_end(const Connection& connection);
  void end_message(Connection& connection);

  // --- what is noticed
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
  pid_t process_;  // a fork has the sockets too, but they are not its own
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
  std::vector<Connection*> out_, in_;  // per step: where it sends to and receives from
  std::vector<Connection*> staged_;    // per step: the connection that holds what arrived too early
  std::uint64_t bound_to_ = 0;         // the executor for which out_ and in_ were looked up
  Clock::time_point progress_, idle_;
  Clock::duration reported_{}, judged_{};  // since progress_: the next report, the next judgement
  std::vector<Connection*> unanswered_;
  bool asking_ = false, curious_ = false;
  // What is noticed.
  bool healing_ = false, watching_ = true;
  bool carrying_ = false;  // within carry_out()
  std::atomic<bool> wanted_ = false;
  bool meeting_ = false, news_ = false;
  std::pair<NodeId, NodeId> broken_{-1, -1};
  std::uint32_t away_us_ = 0;
  Clock::time_point began_, ended_;            // of this call, and of the last one
  Clock::time_point asked_;                    // when the kernel was asked about what was sent
  std::int32_t sent_by_ = 0;                   // the algorithm of the last call
  std::vector<Clock::time_point> receivable_;  // per step: since when
  RankWatch ranks_;
  mutable std::mutex records_lock_;
  std::vector<CallRecord> records_;  // a ring
  Seen<std::int64_t> listed_;
  // Between calls: the next one, as peers ask about it.
  std::vector<std::pair<NodeId, MessageHeader>> heard_;
};

}  // namespace tacos
