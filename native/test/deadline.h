// Ends the program where a part of it takes longer than it may: a kernel may wait for what never comes.
#pragma once
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace tandem::test {

class Deadline {
 public:
  // TANDEM_TEST_SECONDS from now on, where that is set.
  static void begin(const char* what) {
    const char* seconds = std::getenv("TANDEM_TEST_SECONDS");
    if (!seconds) return;
    running_ = what;
    seconds_ = unsigned(std::atoi(seconds));
    std::signal(SIGALRM, &end);
    alarm(seconds_);
  }

 private:
  static void end(int) {
    char line[256];
    const int length = std::snprintf(line, sizeof line, "FAILED %s: no end after %u s\n", running_, seconds_);
    _exit(write(STDOUT_FILENO, line, size_t(length)) < 0 ? 1 : 124);
  }

  static inline const char* running_ = "";
  static inline unsigned seconds_ = 0;
};

}  // namespace tandem::test
