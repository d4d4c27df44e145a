// A loaded model with random weights, engines and trainers of it, and the results so far.
#pragma once
#include <chrono>
#include <functional>

#include "../../kernels/device_noise.h"
#include "driver.h"
#include "shapes.h"
#include "tiny_model.h"

namespace tandem::benchmarks {

using test::Driver;
using test::Job;
using test::Random;
using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Timing {
  double median = 0, least = 0, most = 0;
};
Timing timing_of(std::vector<double> values);

struct Result {
  std::string name;
  Timing value;
  const char* unit;
};

class Bench {
 public:
  // `prints`: results go to the standard output as they come.
  Bench(const std::string& shape, const std::string& weights, bool prints = true);

  const model::Spec& spec() const { return spec_; }
  const device::Model& model() const { return *model_; }
  const Counts& counts() const { return counts_; }
  bool quantised() const { return quantised_; }
  const std::vector<Result>& results() const { return results_; }

  // A value, or several of which a larger one is so much per second, or a time.
  void add(const std::string& name, const Timing& value, const char* unit);
  void add(const std::string& name, double value, const char* unit) { add(name, Timing{value, value, value}, unit); }
  // `amount` of the unit took so many seconds.
  void add_rate(const std::string& name, double amount, const Timing& seconds, const char* unit);
  void add_time(const std::string& name, const Timing& seconds);
  // What a step takes more than the other, of that.
  void add_cost(const std::string& name, const Timing& with, const Timing& without);
  void write(const char* path) const;

  // Greedy and without log-probabilities; prompts of noise, others at every call.
  std::vector<Job> jobs(int64_t count, int64_t prompt, int64_t outputs);
  engine::Options options(int64_t sequences, int64_t batch, int64_t length) const;
  std::unique_ptr<engine::Engine> engine_of(const engine::Options& options) const;
  Driver driver_of(const engine::Options& options, uint64_t page_seed = 0) const { return Driver(engine_of(options), options, page_seed); }
  // Under factors of rank 8 for every projection.
  std::unique_ptr<train::Trainer> trainer_of(int64_t tokens, bool recompute) const;

  // All but the head, which prefill uses for one row.
  double weights_per_token() const { return weights_of(double(spec_.experts.used)); }
  // Weights that a decode step of so many streams reads: of an embedding that is not the head a row per token, of experts as many as that many tokens
  // use on average where each takes any of them.
  double bytes_per_step(int64_t streams) const;

  // The device's limits, measured when they are first asked for: operations of a large BF16 product per second (cuBLASLt's where the machine
  // has it, else ours), and bytes read and written per second by a copy.
  double product_rate();
  double copy_rate();

 private:
  // With so many experts per layer.
  double weights_of(double experts) const;

  std::string shape_, weights_;
  bool prints_;
  model::Spec spec_;
  Counts counts_;
  bool quantised_;
  std::shared_ptr<device::Model> model_;
  Random random_{1};
  double product_rate_ = 0, copy_rate_ = 0;
  std::vector<Result> results_;
};

}  // namespace tandem::benchmarks
