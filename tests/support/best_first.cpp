// Drives a best-first search by commands from the standard input, for tests/test_best_first.py.
#include "graph/best_first.hpp"

#include <iostream>
#include <string>
#include <utility>

int main() {
  std::int32_t places = 0;
  std::cin >> places;
  tacos::BestFirst<std::pair<std::int64_t, std::int32_t>> search(places);
  std::pair<std::int64_t, std::int32_t> key;
  std::int32_t place = 0, mark = 0;
  for (std::string command; std::cin >> command;) {
    if (command == "start") {
      std::cin >> place >> key.first >> key.second;
      search.start(place, key);
    } else if (command == "offer" || command == "pass") {
      std::cin >> place >> key.first >> key.second >> mark;
      const bool would = search.accepts(place, key);
      const bool accepted = search.offer(place, key, mark, command == "offer");
      std::cout << would << accepted << '\n';
    } else if (command == "next") {
      const auto next = search.next();
      std::cout << (next ? *next : -1) << '\n';
    } else if (command == "known") {
      for (const auto at : search.reached()) {
        std::cout << at << ' ' << search.key(at).first << ' ' << search.key(at).second << ' ';
        std::cout << (search.source(at) ? -1 : search.mark(at)) << ' ';
      }
      std::cout << '\n';
    } else if (command == "restart") {
      search.restart();
    } else if (command == "clear") {
      search.clear();
    }
  }
}
