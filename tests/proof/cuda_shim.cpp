// Lets a CPU build of torch follow fake `cuda` tensors through autograd: one device, one stream, nothing behind them.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(at::DeviceIndex) const override { return true; }
  bool compiledWithCuDNN() const override { return false; }
  at::DeviceIndex current_device() const override { return 0; }
  at::DeviceIndex deviceCount() const override { return 1; }
  at::DeviceIndex getCurrentDevice() const override { return 0; }
  at::DeviceIndex exchangeDevice(at::DeviceIndex) const override { return 0; }
  at::DeviceIndex maybeExchangeDevice(at::DeviceIndex) const override { return 0; }
  void setCurrentDevice(at::DeviceIndex) const override {}
  int getNumGPUs() const override { return 1; }
  void deviceSynchronize(at::DeviceIndex) const override {}
};

struct Guard : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  static c10::Device device() { return {c10::DeviceType::CUDA, 0}; }
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};

// What a card of compute capability 8 or more would choose: flash (1), memory-efficient (2), or plain math (0).
int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor&, const at::Tensor&,
                         const std::optional<at::Tensor>& mask, double, bool, std::optional<double>, bool) {
  const auto& context = at::globalContext();
  const auto head_width = query.sym_size(-1).guard_int(__FILE__, __LINE__);
  const bool half = query.element_size() == 2;
  if (context.userEnabledFlashSDP() && half && !mask && head_width <= 256) return 1;
  if (context.userEnabledMemEfficientSDP() && head_width % (half ? 8 : 4) == 0) return 2;
  return 0;
}

} // namespace

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &fused_sdp_choice)
}
namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
