// Products of pairs with their experts' weights by wgmma: what they must be, for tiles of every size, and the engine and trainer made of them.
#include <array>

#include "expert_pairs.h"
#include "mixture_checks.h"

namespace tandem::test {
namespace {

// Tiles of 8, 16, 32, 64 and 128 pairs, which are full, half full, nearly empty, or not there.
const std::vector<std::array<int64_t, 3>> kRouted = {{1, 8, 3}, {9, 4, 2}, {9, 2, 2}, {20, 3, 2}, {70, 3, 1}, {70, 2, 1}, {70, 2, 2}};

TEST(hopper_experts_multiply_their_pairs) {
  if (!on_hopper()) return;
  Random random(184);
  for (auto [rows, experts, used] : kRouted) {
    Routed routed(random, rows, experts, used);
    // An end within a tile of k, tiles one or two at a time, and stages that come round.
    for (auto [n, k] : {std::array<int64_t, 2>{40, 72}, {136, 128}, {200, 1096}}) {
      check_pairs(routed, n, k, used, false, ExpertKernel::kWgmma);
    }
  }
}

TEST(hopper_experts_multiply_their_pairs_back) {
  if (!on_hopper()) return;
  Random random(185);
  for (auto [rows, experts, used] : kRouted) {
    Routed routed(random, rows, experts, used);
    for (auto [n, k] : {std::array<int64_t, 2>{72, 40}, {128, 136}, {600, 200}}) {
      check_pairs(routed, n, k, 1, true, ExpertKernel::kWgmma);
    }
  }
}

// Rows that are nobody's have no places in the order.
TEST(hopper_experts_leave_out_what_is_nobodys) {
  if (!on_hopper()) return;
  Random random(186);
  std::vector<int32_t> slots;
  for (int32_t row = 0; row < 12; ++row) slots.push_back(row < 7 ? row : -1);
  Routed padded(random.normals(12 * 5), 5, 12, 5, 2, true, slots);
  const auto order = padded.order.download();
  for (size_t place = 0; place < order.size(); ++place) CHECK_EQ(order[place] < 0, place >= 14);
  for (bool transposed : {false, true}) check_pairs(padded, 72, 136, 2, transposed, ExpertKernel::kWgmma);
  check_gates(padded, 80, 136, true, ExpertKernel::kWgmma);
}

TEST(hopper_experts_gate_what_they_multiply) {
  if (!on_hopper()) return;
  Random random(187);
  for (auto [rows, experts, used] : kRouted) {
    Routed routed(random, rows, experts, used);
    for (int64_t n : {48, 144}) {
      for (bool keeps : {false, true}) check_gates(routed, n, 72, keeps, ExpertKernel::kWgmma);
    }
  }
}

TEST(hopper_pairs_of_experts_do_not_depend_on_their_batch) {
  if (!on_hopper()) return;
  for (bool transposed : {false, true}) check_pairs_alone(transposed, ExpertKernel::kWgmma);
}

// The activation's gradient is written where its pair's next product looks for it.
TEST(hopper_gradients_of_experts_activations_lie_in_order) {
  if (!on_hopper()) return;
  Random random(188);
  const int64_t pairs = 5, width = 24;
  const DeviceBuffer<bf16> x(bf16s(random, size_t(pairs * 2 * width)));
  const DeviceBuffer<float> d(random.normals(size_t(pairs * width))), weights(random.normals(size_t(pairs)));
  const std::vector<int32_t> places = {3, 0, 4, -1, -1};
  const DeviceBuffer<int32_t> order(places);
  std::vector<bf16> rows[2];
  std::vector<float> sums[2];
  for (const bool sorted : {false, true}) {
    DeviceBuffer<bf16> dx(std::vector<bf16>(size_t(pairs * 2 * width), cuda::to_bf16(7.5f)));
    DeviceBuffer<float> d_weights(std::vector<float>(size_t(pairs), 7.5f));
    cuda::ExpertsSiluBackward args{x.data(), d.data(), width, weights.data(), dx.data(), d_weights.data(), pairs, width};
    args.order = sorted ? order.data() : nullptr;
    cuda::experts_silu_backward(args, nullptr);
    rows[sorted] = dx.download();
    sums[sorted] = d_weights.download();
  }
  for (size_t place = 0; place < places.size(); ++place) {
    const int32_t pair = places[place];
    for (size_t i = 0; i < size_t(2 * width); ++i) {
      const uint16_t wanted = pair < 0 ? cuda::to_bf16(7.5f).bits : rows[false][size_t(pair) * 2 * width + i].bits;
      CHECK_EQ(rows[true][place * 2 * width + i].bits, wanted);
    }
  }
  for (const int32_t pair : {3, 0, 4}) CHECK(same_bits(sums[true][size_t(pair)], sums[false][size_t(pair)]));
  CHECK_EQ(sums[true][1], 7.5f);
}

const std::vector<const char*> kAll = {"TANDEM_CUDA_MATMUL", "TANDEM_CUDA_ATTENTION", "TANDEM_CUDA_EXPERTS"};

TEST_ENGINE(hopper_mixture_gives_the_tokens_of_the_cpu) {
  if (!on_hopper()) return;
  const SettingTo experts("TANDEM_CUDA_EXPERTS", "wgmma");
  check_against_cpu(mixture_for_device(), {device_job(1, 1, 6), device_job(2, 40, 6), device_job(3, 70, 4)});
}

TEST_ENGINE(hopper_mixture_gives_the_same_bits) {
  if (!on_hopper()) return;
  for (const bool experts : {false, true}) {
    auto model = load_with_wgmma(mixture_for_device(), {kAll.begin(), kAll.end() - !experts});
    check_same_bits(model, {device_job(11, 1, 4, 1), device_job(12, 70, 2), device_job(13, 20, 3)});
    check_logprobs(mixture_for_device(), model);
  }
}

TEST_ENGINE(hopper_mixture_gives_the_gradients_of_the_cpu) {
  if (!on_hopper()) return;
  const TinyModel source = mixture_for_device(true, kWindow);
  auto model = load_with_wgmma(source, kAll);
  check_gradients_against_cpu(source, model, 92, true);
  check_logprobs(source, model);
}

TEST_ENGINE(hopper_mixture_gives_the_same_bits_of_thousands_of_rows) {
  if (!on_hopper()) return;
  check_thousands_of_rows(load_with_wgmma(mixture_for_device(), {"TANDEM_CUDA_EXPERTS"}));
}

// Whose weights have no kernel but mma's.
TEST_ENGINE(hopper_mixture_of_quantised_weights_is_as_without) {
  if (!on_hopper()) return;
  const TinyModel source = mixture_for_device();
  std::vector<Job> jobs[2] = {{device_job(18, 18, 3)}, {device_job(18, 18, 3)}};
  for (const bool asked : {false, true}) {
    const SettingTo experts("TANDEM_CUDA_EXPERTS", asked ? "wgmma" : "mma");
    std::shared_ptr<device::Model> model;
    source.with_files(
        [&](const auto& files, const auto& tensors) { model = device::load(source.spec, files, tensors, 1, {}, ops::QuantFormat::kFp8); });
    Driver driver = device_driver(model, device_options());
    run_together(driver, jobs[asked]);
  }
  check_same_jobs(jobs[0], jobs[1]);
}

TEST(hopper_experts_refuse_what_does_not_fit) {
  if (!on_hopper()) return;
  alignas(16) bf16 memory[64] = {};
  float y[16] = {};
  auto with = [&](auto change) {
    cuda::ExpertsMatMul args{memory, 16, 1, 0, nullptr, nullptr, memory, 1, 16, 16, y, 16};
    args.kernel = ExpertKernel::kWgmma;
    change(args);
    cuda::experts_matmul(args, nullptr);
  };
  with([](auto&) {});
  CHECK_ERROR(kRange, "experts_matmul: kernel", with([](auto& a) { a.shared = 2; }));
  CHECK_ERROR(kRange, "experts_matmul: n", with([](auto& a) { a.n = 12; }));
  CHECK_ERROR(kRange, "experts_matmul: n", with([&](auto& a) { a.n = 8, a.gated = memory; }));
  CHECK_ERROR(kRange, "experts_matmul: ldy", with([](auto& a) { a.ldy = 18; }));
  CHECK_ERROR(kRange, "gather_pairs: width", cuda::gather_pairs({memory, 16, 1, nullptr, 1, 12, memory}, nullptr));
  CHECK_ERROR(kRange, "gather_pairs: shared", cuda::gather_pairs({memory, 16, 0, nullptr, 1, 16, memory}, nullptr));
}

TEST(hopper_experts_are_chosen_by_name) {
  for (int major : {8, 9, 12}) CHECK(cuda::expert_kernel(nullptr, major, 0) == ExpertKernel::kMma);
  CHECK(cuda::expert_kernel("wgmma", 9, 0) == ExpertKernel::kWgmma);
  CHECK_ERROR(kUnsupported, "TANDEM_CUDA_EXPERTS=wgmma needs a GPU of compute capability 9.x, and this one has 8.6",
              cuda::expert_kernel("wgmma", 8, 6));
  CHECK_ERROR(kRange, "TANDEM_CUDA_EXPERTS must be mma or wgmma", cuda::expert_kernel("both", 9, 0));
}

#ifdef TANDEM_GPU_EMULATION
TEST(hopper_mixture_takes_the_memory_that_it_plans) {
  const SettingTo experts("TANDEM_CUDA_EXPERTS", "wgmma");
  check_planned_memory(mixture_for_device());
  check_trainer_memory(mixture_for_device());
}
#endif

}  // namespace
}  // namespace tandem::test
