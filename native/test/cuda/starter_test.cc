// The starter model on a device: the greedy tokens of its goldens (transformers, float32) and of the CPU's engine.
#include <cstring>
#include <fstream>
#include <sstream>

#include "close_tokens.h"
#include "device/device.h"
#include "grammar/json.h"
#include "patient_budget.h"

namespace tandem::test {
namespace {

using grammar::Json;

std::string path_of(const std::string& name) { return std::string(TANDEM_STARTER_FOLDER) + "/" + name; }

Json parse(const std::string& text) {
  grammar::Budget budget = grammar::patient_budget();
  return grammar::parse_json(text, budget);
}

std::string read_all(const std::string& name) {
  std::ifstream file(path_of(name), std::ios::binary);
  require(file.good(), ErrorKind::kIo, "the starter model is not there");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

const Json& at(const Json& object, std::string_view name) {
  const Json* found = object.find(name);
  require(found != nullptr, ErrorKind::kRange, "a field is missing");
  return *found;
}
double number(const Json& value) { return std::stod(grammar::to_text(value.number)); }
int64_t whole(const Json& object, std::string_view name) { return int64_t(number(at(object, name))); }

model::Spec read_spec() {
  const Json config = parse(read_all("config.json"));
  model::Spec s;
  s.vocab_size = whole(config, "vocab_size");
  s.hidden_size = whole(config, "hidden_size");
  s.intermediate_size = whole(config, "intermediate_size");
  s.layers = whole(config, "num_hidden_layers");
  s.heads = whole(config, "num_attention_heads");
  s.kv_heads = whole(config, "num_key_value_heads");
  s.head_dim = whole(config, "head_dim");
  s.rms_norm_eps = number(at(config, "rms_norm_eps"));
  s.rope.theta = number(at(config, "rope_theta"));
  s.max_position = whole(config, "max_position_embeddings");
  s.window_layers.assign(size_t(s.layers), 0);
  s.qk_norm = true;
  s.tied_embeddings = at(config, "tie_word_embeddings").is(Json::kTrue);
  return s;
}

std::vector<model::Tensor> read_tensors() {
  const std::string file = read_all("model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  std::vector<model::Tensor> tensors;
  for (const auto& [name, entry] : parse(file.substr(sizeof header, header)).members) {
    if (name == "__metadata__") continue;
    model::Tensor tensor{name, model::Stored::kBf16, {}, 0, 0};
    for (const Json& size : at(entry, "shape").items) tensor.shape.push_back(int64_t(number(size)));
    tensor.offset = int64_t(sizeof header + header) + int64_t(number(at(entry, "data_offsets").items[0]));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Job job_of(const Json& golden, int64_t outputs) {
  Job job;
  for (const Json& id : at(golden, "prompt_ids").items) job.prompt.push_back(int32_t(number(id)));
  job.params.max_tokens = outputs;
  job.params.sampling.temperature = 0;
  job.params.sampling.logprobs = 2;
  return job;
}

void run(Driver driver, std::vector<Job>& jobs) {
  for (size_t i = 0; i < jobs.size(); ++i) driver.start(int64_t(i), jobs[i]);
  driver.run();
}

#ifdef TANDEM_GPU_EMULATION
constexpr size_t kGoldens = 1;
constexpr int64_t kOutputs = 3;
#else
constexpr size_t kGoldens = 27;
constexpr int64_t kOutputs = 32;
#endif

TEST_ENGINE(gpu_engine_gives_the_starter_models_tokens) {
  const std::vector<std::string> files = {path_of("model.safetensors")};
  const model::Spec spec = read_spec();
  const std::vector<model::Tensor> tensors = read_tensors();
  const Json goldens = parse(read_all("goldens.json"));
  engine::Options o;
  o.max_sequences = 32;
  o.max_batch_tokens = 512;
  o.max_model_len = 512;
  o.pages = 800;
  o.samplable_vocab = spec.vocab_size;
  o.max_logprobs = 2;
  std::vector<Job> device_jobs;
  for (size_t i = 0; i < std::min(kGoldens, goldens.items.size()); ++i) device_jobs.push_back(job_of(goldens.items[i], kOutputs));
  std::vector<Job> cpu_jobs = device_jobs;
  auto on_device = device::load(spec, files, tensors, 1, {});
  auto make = [&](const engine::Options& checked) { return on_device->make_backend(checked, 0); };
  run(Driver(std::make_unique<engine::Engine>(on_device->facts(), o, make), o), device_jobs);
  run(Driver(std::make_shared<model::Model>(spec, files, tensors, ops::Element::kBf16, 1, model::Progress()), o), cpu_jobs);
  for (size_t j = 0; j < device_jobs.size(); ++j) {
    const Job &device = device_jobs[j], &cpu = cpu_jobs[j];
    if (!close_tokens(device, cpu)) continue;
    const std::vector<Json>& wanted = at(goldens.items[j], "output_ids").items;
    // Of float32: in bf16 a tie may fall otherwise, on both alike.
    for (size_t i = 0; i < device.output.size(); ++i) {
      if (device.output[i].id == int32_t(number(wanted[i]))) continue;
      CHECK(cpu.output[i].top[0].logprob - cpu.output[i].top[1].logprob < kTie);
      break;
    }
  }
}

}  // namespace
}  // namespace tandem::test
