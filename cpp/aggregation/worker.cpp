#include "aggregation/worker.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "aggregation/encoding.hpp"
#include "support/error.hpp"

namespace tacos::aggregation {

namespace {

constexpr std::uint64_t kMostProbe_us = 100'000;  // longest pause between probes (chosen)
constexpr std::size_t kProbes = 2;                // slots that the first probe retransmits (chosen)
constexpr std::uint32_t kMostDoublings = 3;       // each later probe doubles them, up to 16 slots
constexpr std::uint32_t kMostAttempts = 32;       // generations per operation (chosen)

std::string seconds(std::uint64_t us) {
  auto text = std::to_string(static_cast<double>(us) / 1e6);
  text.erase(text.find('.') + 2);
  return text + " s";
}

}  // namespace

Worker::Worker(WorkerSettings settings) : settings_(std::move(settings)) {
  if (settings_.workers == 0 || settings_.workers > kMostWorkers) {
    throw std::invalid_argument("workers must be 1 to 64; got " +
                                std::to_string(settings_.workers));
  }
  if (settings_.worker >= settings_.workers) {
    throw std::invalid_argument("worker must be below " + std::to_string(settings_.workers) +
                                "; got " + std::to_string(settings_.worker));
  }
  if (settings_.pool == 0 || settings_.pool > kMostPool) {
    throw std::invalid_argument("pool must be 1 to " + std::to_string(kMostPool) + "; got " +
                                std::to_string(settings_.pool));
  }
  if (settings_.packet_elements < 3 || settings_.packet_elements > kMostElements) {
    throw std::invalid_argument("packet_elements must be 3 to " + std::to_string(kMostElements) +
                                "; got " + std::to_string(settings_.packet_elements));
  }
  if (settings_.job.empty() || settings_.job.size() > JobName{}.size()) {
    throw std::invalid_argument("job must be a name of 1 to 32 bytes; got '" + settings_.job + "'");
  }
  slots_.resize(settings_.pool + 1U);
  for (auto& slot : slots_) slot.bytes.resize(packet_bytes(settings_.packet_elements));
}

void Worker::start(const void* from, void* to, std::uint64_t elements, DType dtype, bool average,
                   std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  if (!failure_.empty()) throw Error(failure_);
  if (state_ != WorkerState::idle) throw Error("an operation runs already");
  if (!encodes(dtype)) {
    throw std::invalid_argument("a switch cannot add " + std::string(name_of(dtype)) +
                                "; expected integers, float32, float16 or bfloat16");
  }
  if (average && !scaled(dtype)) {
    throw std::invalid_argument("a switch cannot average " + std::string(name_of(dtype)) +
                                "; expected float32, float16 or bfloat16");
  }
  from_ = static_cast<const std::byte*>(from);
  to_ = static_cast<std::byte*>(to);
  elements_ = elements;
  dtype_ = dtype;
  average_ = average;
  complete_ = non_finite_ = false;
  block_elements_ = settings_.packet_elements / words_of(dtype);
  blocks_ = (elements + block_elements_ - 1) / block_elements_;
  batch_ = scaled(dtype) ? std::min<std::uint64_t>(settings_.pool, blocks_) : 0;
  packets_ = blocks_ + batch_;
  tag_ = tag_of(operation_, elements, static_cast<std::uint8_t>(dtype));
  attempts_ = 0;
  begun_ = false;
  progress(now_us);
  heard_us_ = now_us;
  asked_ = false;
  if (generation_ == 0) {
    begin_joining(now_us, out);
  } else {
    begin_running(now_us, out);
  }
}

// --- joining

void Worker::begin_joining(std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  generation_ = 0;
  shift_ = closings_ = 0;
  if (++attempts_ > kMostAttempts) {
    fail("the operation was begun " + std::to_string(kMostAttempts) +
             " times; two workers may have the number of one",
         false);
    return;
  }
  state_ = WorkerState::joining;
  ++attempt_;
  probes_ = 0;
  send_join(now_us, out);
}

void Worker::send_join(std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  auto header = make_header(PacketKind::join);
  header.worker = settings_.worker;
  const JoinBody body{.token = settings_.token,
                      .job = job_name(settings_.job),
                      .members = std::uint64_t{1} << settings_.worker,
                      .incarnation = settings_.incarnation,
                      .operation = operation_,
                      .elements = elements_,
                      .attempt = attempt_,
                      .workers = settings_.workers,
                      .pool = settings_.pool,
                      .packet_elements = settings_.packet_elements,
                      .dtype = static_cast<std::uint8_t>(dtype_),
                      .complete = complete_,
                      .behind = 0,
                      .unused = {}};
  control_.resize(kHeader + sizeof body);
  std::memcpy(control_.data(), &header, kHeader);
  std::memcpy(control_.data() + kHeader, &body, sizeof body);
  out.push_back({control_.data(), control_.size(), 0});
  ++counters_.joins;
  join_us_ = now_us + std::min(settings_.timer_us << std::min(probes_++, 10U), kMostProbe_us);
  deadline_ = join_us_;
  if (!asked_) asked_us_ = now_us;
  asked_ = true;
}

void Worker::take_welcome(const PacketHeader& header, std::span<const std::byte> packet,
                          std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  WelcomeBody body{};
  if (!read_body(packet, body) || body.incarnation != settings_.incarnation ||
      body.attempt != attempt_ || header.generation == 0) {
    ++counters_.foreign;
    return;
  }
  if (state_ != WorkerState::joining) return;  // a second copy
  generation_ = header.generation;
  job_ = header.job;
  shards_ = std::max<std::uint16_t>(body.shards, 1);
  progress(now_us);
  // Another worker is at a later operation, or all have completed this one: all workers have all results.
  const bool done = complete_ && (body.operation > operation_ || body.complete != 0);
  if (body.operation != operation_ && !done) {
    fail("the switch begins operation " + std::to_string(body.operation) +
             ", this worker is at operation " + std::to_string(operation_),
         false);
  } else if (done) {
    finish();
  } else {
    begin_running(now_us, out);
  }
}

void Worker::take_notice(const PacketHeader& header, std::span<const std::byte> packet,
                         std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  NoticeBody body{};
  if (!read_body(packet, body)) {
    ++counters_.foreign;
    return;
  }
  const bool to_join = body.incarnation == settings_.incarnation && body.attempt == attempt_;
  const bool to_data =
      generation_ != 0 && header.generation == generation_ && body.incarnation == 0;
  if (!to_join && !to_data) {
    ++counters_.foreign;
    return;
  }
  heard_us_ = now_us;
  asked_ = false;
  if (body.code == NoticeCode::waiting) {
    present_ = body.members;
    // The switch has this contribution and waits for another worker's, so retransmitting soon is useless.
    const std::size_t number = header.slot & static_cast<std::uint16_t>(~kVersionBit);
    if (to_data && number < slots_.size() && slots_[number].open &&
        slots_[number].sequence == header.sequence) {
      slots_[number].sent_us = now_us + static_cast<std::uint64_t>(trip_);
    }
    return;
  }
  if (body.code == NoticeCode::failed || body.code == NoticeCode::refused) {
    const std::string text(reinterpret_cast<const char*>(packet.data()) + kHeader + sizeof body,
                           packet.size() - kHeader - sizeof body);
    if (body.code == NoticeCode::failed && complete_ && body.members > operation_) {
      finish();  // other workers are ahead: this operation is complete, and the next one fails
      failure_ = text;
      return;
    }
    fail(body.code == NoticeCode::refused
             ? "the switch refused worker " + std::to_string(settings_.worker) + ": " + text
             : text,
         false);
    return;
  }
  if (state_ == WorkerState::idle) {
    generation_ = 0;  // join again for the next operation
  } else {
    begin_joining(now_us, out);
  }
}

void Worker::leave(std::vector<WorkerPacket>& out) {
  if (generation_ == 0) return;
  auto header = make_header(PacketKind::leave);
  header.job = job_;
  header.generation = generation_;
  header.worker = settings_.worker;
  const LeaveBody body{settings_.incarnation};
  control_.resize(kHeader + sizeof body);
  std::memcpy(control_.data(), &header, kHeader);
  std::memcpy(control_.data() + kHeader, &body, sizeof body);
  out.push_back({control_.data(), control_.size(), 0});
  generation_ = 0;
}

// --- running

std::size_t Worker::elements_of(std::uint64_t block) const {
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(block_elements_, elements_ - block * block_elements_));
}

void Worker::begin_running(std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  state_ = WorkerState::running;
  if (begun_) ++counters_.repeats;
  begun_ = true;
  complete_ = non_finite_ = false;
  probes_ = 0;
  probe_us_ = now_us + timer_us();
  deadline_ = probe_us_;
  present_ = 0;
  delivered_us_ = 0;
  received_.assign(packets_, 0);
  posted_.assign(packets_, 0);
  exponents_.assign(scaled(dtype_) ? blocks_ : 0, kNoExponent);
  missing_ = packets_;
  for (auto& slot : slots_) slot.open = false;
  if (packets_ == 0) {
    send_closing(now_us, out);
    return;
  }
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(settings_.pool, packets_); ++i) {
    send_if_ready(i, now_us, out);
  }
}

void Worker::send_if_ready(std::uint64_t packet, std::uint64_t now_us,
                           std::vector<WorkerPacket>& out) {
  if (packet >= packets_ || posted_[packet] != 0) return;
  if (packet >= settings_.pool && received_[packet - settings_.pool] == 0) return;
  if (batch_ != 0 && packet >= batch_ && received_[packet - batch_] == 0) return;
  send_packet(packet, now_us, out);
}

void Worker::send_packet(std::uint64_t packet, std::uint64_t now_us,
                         std::vector<WorkerPacket>& out) {
  const std::uint64_t use = packet + shift_;
  const auto number = static_cast<std::uint16_t>(use % settings_.pool);
  Slot& slot = slots_[number];
  auto header = make_header(PacketKind::contribution);
  header.job = job_;
  header.generation = generation_;
  header.sequence = static_cast<std::uint32_t>(use);
  header.tag = tag_;
  header.slot =
      static_cast<std::uint16_t>(number | (use / settings_.pool % 2 != 0 ? kVersionBit : 0));
  header.worker = settings_.worker;
  header.exponent = kNoExponent;
  const std::size_t bytes = size_of(dtype_);
  if (batch_ != 0 && packet < blocks_) {
    header.exponent =
        block_exponent(from_ + packet * block_elements_ * bytes, elements_of(packet), dtype_);
  }
  if (packet >= batch_) {
    const std::uint64_t block = packet - batch_;
    const std::size_t count = elements_of(block);
    header.elements = static_cast<std::uint16_t>(count * words_of(dtype_));
    encode(from_ + block * block_elements_ * bytes, count, dtype_,
           batch_ != 0 ? exponents_[block] : std::int16_t{0}, settings_.workers,
           reinterpret_cast<std::int32_t*>(slot.bytes.data() + kHeader));
  }
  std::memcpy(slot.bytes.data(), &header, kHeader);
  slot.packet = packet;
  slot.sequence = header.sequence;
  slot.open = true;
  slot.again = false;
  slot.sent_us = now_us;
  posted_[packet] = 1;
  ++counters_.sent;
  if (!asked_) asked_us_ = now_us;
  asked_ = true;
  out.push_back({slot.bytes.data(), packet_bytes(header.elements),
                 shard_of(number, settings_.pool, shards_)});
}

void Worker::send_closing(std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  state_ = WorkerState::closing;
  complete_ = true;
  Slot& slot = slots_.back();
  auto header = make_header(PacketKind::contribution);
  header.job = job_;
  header.generation = generation_;
  header.sequence = static_cast<std::uint32_t>(closings_);
  header.tag = tag_;
  header.slot = static_cast<std::uint16_t>(settings_.pool | (closings_ % 2 != 0 ? kVersionBit : 0));
  header.worker = settings_.worker;
  header.exponent = kNoExponent;
  std::memcpy(slot.bytes.data(), &header, kHeader);
  slot.sequence = header.sequence;
  slot.open = true;
  slot.again = false;
  slot.sent_us = now_us;
  ++counters_.closings;
  if (!asked_) asked_us_ = now_us;
  asked_ = true;
  out.push_back({slot.bytes.data(), kHeader, shard_of(settings_.pool, settings_.pool, shards_)});
}

void Worker::receive(std::span<const std::byte> packet, std::uint64_t now_us,
                     std::vector<WorkerPacket>& out) {
  PacketHeader header{};
  if (state_ == WorkerState::failed) return;
  if (!read_header(packet, header)) {
    ++counters_.foreign;
  } else if (header.kind == PacketKind::result) {
    take_result(header, packet, now_us, out);
  } else if (header.kind == PacketKind::welcome) {
    take_welcome(header, packet, now_us, out);
  } else if (header.kind == PacketKind::notice) {
    take_notice(header, packet, now_us, out);
  } else {
    ++counters_.foreign;
  }
}

void Worker::take_result(const PacketHeader& header, std::span<const std::byte> packet,
                         std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  const std::uint16_t number = header.slot & static_cast<std::uint16_t>(~kVersionBit);
  if (generation_ == 0 || header.generation != generation_ || number > settings_.pool ||
      packet.size() != packet_bytes(header.elements)) {
    ++counters_.foreign;
    return;
  }
  heard_us_ = now_us;
  asked_ = false;
  Slot& slot = slots_[number];
  const auto sent = [&] {
    PacketHeader mine{};
    std::memcpy(&mine, slot.bytes.data(), kHeader);
    return mine;
  }();
  const bool running = state_ == WorkerState::running || state_ == WorkerState::closing;
  if (!running || !slot.open || slot.sequence != header.sequence || header.tag != tag_ ||
      header.slot != sent.slot || header.elements != sent.elements) {
    ++counters_.repeated;
    return;
  }
  slot.open = false;
  const std::uint64_t trip = now_us > slot.sent_us ? now_us - slot.sent_us : 0;
  if (!slot.again) measure(trip);
  // The result of a retransmitted packet may answer its first copy, so it tells nothing about later packets.
  if (!slot.again || static_cast<double>(trip) >= trip_) {
    delivered_us_ = std::max(delivered_us_, slot.sent_us);
  }
  progress(now_us);
  if (number == settings_.pool) {
    ++closings_;
    finish();
    return;
  }
  ++counters_.results;
  const std::uint64_t i = slot.packet;
  received_[i] = 1;
  if (batch_ != 0 && i < blocks_) {
    exponents_[i] = header.exponent;
    non_finite_ |= header.exponent == kNonFinite;
  }
  if (i >= batch_) {
    const std::uint64_t block = i - batch_;
    decode(reinterpret_cast<const std::int32_t*>(packet.data() + kHeader), elements_of(block),
           dtype_, batch_ != 0 ? exponents_[block] : std::int16_t{0}, settings_.workers,
           average_ ? settings_.workers : 1, to_ + block * block_elements_ * size_of(dtype_));
  }
  --missing_;
  send_if_ready(i + settings_.pool, now_us, out);
  if (batch_ != 0 && batch_ != settings_.pool) send_if_ready(i + batch_, now_us, out);
  if (missing_ == 0) {
    shift_ += packets_;
    send_closing(now_us, out);
  }
}

void Worker::finish() {
  state_ = WorkerState::idle;
  deadline_ = ~std::uint64_t{0};
  ++operation_;
}

// --- time

// A result waits for the last contribution, so a long trip tells of a peer that is late or has lost a packet, not of the
// network. Counted whole, one loss would delay the discovery of the next one, which lengthens the trips further.
void Worker::measure(std::uint64_t trip_us) {
  const auto trip = static_cast<double>(std::min(trip_us, kMostProbe_us));
  if (!measured_) {
    trip_ = trip;
    deviation_ = trip / 2;
    measured_ = true;
    return;
  }
  deviation_ += (std::abs(trip - trip_) - deviation_) / 4;
  trip_ += (trip - trip_) / 8;
}

std::uint64_t Worker::timer_us() const {
  if (!measured_) return settings_.timer_us;
  const auto timer = static_cast<std::uint64_t>(trip_ + 4 * deviation_);
  return std::clamp(timer, settings_.least_timer_us,
                    std::max(settings_.least_timer_us, kMostProbe_us));
}

// How much later than a newer packet's a result may arrive, because peers and paths differ.
std::uint64_t Worker::window_us() const {
  return std::max(settings_.least_timer_us, static_cast<std::uint64_t>(trip_ / 8 + deviation_));
}

void Worker::progress(std::uint64_t now_us) {
  progress_us_ = now_us;
  probe_us_ = now_us + timer_us();
  probes_ = 0;
}

void Worker::send_again(Slot& slot, std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  PacketHeader header{};
  std::memcpy(&header, slot.bytes.data(), kHeader);
  slot.again = true;
  slot.sent_us = now_us;
  const auto number = static_cast<std::uint16_t>(header.slot & ~kVersionBit);
  if (number == settings_.pool) {
    ++counters_.closings;
  } else {
    ++counters_.sent;
    ++counters_.retransmitted;
  }
  if (!asked_) asked_us_ = now_us;
  asked_ = true;
  out.push_back({slot.bytes.data(), packet_bytes(header.elements),
                 shard_of(number, settings_.pool, shards_)});
}

void Worker::poll(std::uint64_t now_us, std::vector<WorkerPacket>& out) {
  if (state_ == WorkerState::idle || state_ == WorkerState::failed) return;
  if (asked_ && now_us > asked_us_ + settings_.silence_us) {
    fail("the switch has not answered for " + seconds(settings_.silence_us), true);
    return;
  }
  if (now_us > progress_us_ + settings_.timeout_us) {
    fail("no progress for " + seconds(settings_.timeout_us) + missing(), false);
    return;
  }
  if (state_ == WorkerState::joining) {
    if (now_us >= join_us_) send_join(now_us, out);
    return;
  }
  // While results arrive, a packet is lost if packets sent well after it have their results. If no results arrive, a
  // peer or the switch is late.
  const bool flowing = now_us < progress_us_ + timer_us();
  const bool probing = !flowing && now_us >= probe_us_;
  const std::uint64_t window = window_us();
  std::size_t probes = 0;
  for (auto& slot : slots_) {
    if (!slot.open) continue;
    if (delivered_us_ > slot.sent_us + window) {
      send_again(slot, now_us, out);
    } else if (probing && probes < kProbes << std::min(probes_, kMostDoublings)) {
      ++probes;
      send_again(slot, now_us, out);
    }
  }
  if (probing) probe_us_ = now_us + std::min(timer_us() << std::min(++probes_, 10U), kMostProbe_us);
  deadline_ = flowing ? now_us + std::max<std::uint64_t>(window / 2, 200)
                      : std::max(probe_us_, now_us + 50);
}

std::string Worker::missing() const {
  std::string text;
  for (std::uint16_t worker = 0; worker < settings_.workers; ++worker) {
    if ((present_ >> worker & 1U) == 0 && present_ != 0) {
      text += (text.empty() ? "" : ", ") + std::to_string(worker);
    }
  }
  if (text.empty()) return "";
  const char* what = state_ == WorkerState::joining ? " has not joined" : " has not sent its data";
  return ": worker " + text + what;
}

void Worker::fail(const std::string& why, bool lost) {
  state_ = WorkerState::failed;
  failure_ = why;
  lost_ = lost;
  deadline_ = ~std::uint64_t{0};
}

}  // namespace tacos::aggregation
