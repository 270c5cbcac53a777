// Errors of the library. A wrong argument is std::invalid_argument; everything that is a condition
// of the problem itself (nothing wrong with the call, but no answer exists) derives from Error.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace tacos {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A demand that no schedule can meet: an NPU that cannot be reached, for example.
class InfeasibleError : public Error {
 public:
  using Error::Error;
};

// Not an error: the work reached the limit of its caller's counter, which ends it.
class WorkIsUp : public std::exception {
 public:
  const char* what() const noexcept override { return "the allowance of work is used up"; }
};

[[noreturn]] inline void invalid(const std::string& message) {
  throw std::invalid_argument(message);
}

}  // namespace tacos
