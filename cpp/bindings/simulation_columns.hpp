// The result of a simulation as columns; the caller adds causes, which only schedules have.
#pragma once

#include <utility>

#include "columns.hpp"
#include "simulate/simulate.hpp"

namespace tacos::bindings {

inline nb::dict simulation_columns(simulation::Result result, bool recorded) {
  nb::dict columns;
  columns["npu_finish_ps"] = give(std::move(result.finish));
  columns["link_busy_ps"] = give(std::move(result.busy));
  if (!recorded) return columns;
  columns["link"] = give(std::move(result.link));
  columns["begin_ps"] = give(std::move(result.begin));
  columns["end_ps"] = give(std::move(result.end));
  columns["transfer"] = give(std::move(result.transfer));
  columns["arrival_npu"] = give(std::move(result.arrival_npu));
  columns["arrival_ps"] = give(std::move(result.arrival_time));
  columns["arrival_bytes"] = give(std::move(result.arrival_bytes));
  columns["arrival_transfer"] = give(std::move(result.arrival_transfer));
  return columns;
}

}  // namespace tacos::bindings
