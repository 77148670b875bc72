// SPDX-License-Identifier: Apache-2.0
#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/rendezvous.hpp"
#include "backends/torch/nccl.hpp"
#include "backends/torch/nccl_communicator.hpp"

namespace troupe {
namespace {

// libtorch's device-independent guard knows streams and events: CUDA's own headers and libraries are not needed.
c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(device); }

cudaStream_t handle_of(const c10::Stream& stream) { return static_cast<cudaStream_t>(stream.native_handle()); }

/// As what NCCL reduces it. Halves are summed as floats, as on the CPU; it knows no short integers.
at::ScalarType carried_type(at::ScalarType type, Reduce reduce) {
  if (is_half(type) && reduce == Reduce::sum) return at::kFloat;
  return type == at::kShort ? at::kInt : type;
}

ncclDataType_t nccl_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kChar:
      return ncclInt8;
    case at::kByte:
    case at::kBool:
      return ncclUint8;  // truth values have min and max only
    case at::kInt:
      return ncclInt32;
    case at::kLong:
      return ncclInt64;
    default:
      throw Error(ErrorCode::internal, fmt::format("NCCL has no type for {}", c10::toString(type)));
  }
}

ncclRedOp_t nccl_reduction(Reduce reduce) {
  return reduce == Reduce::min ? ncclMin : reduce == Reduce::max ? ncclMax : ncclSum;
}

/// Reduced on a stream of its own while backward() goes on.
class NcclBuffer : public ReduceBuffer {
public:
  NcclBuffer(std::shared_ptr<NcclCommunicator> communicator, const NcclApi& api, c10::Stream stream, at::Tensor flat)
      : communicator_(std::move(communicator)), api_(api), stream_(stream), tensor_(std::move(flat)) {
    // Memory that is freed while NCCL still writes to it is not handed out before it has ended.
    tensor_.record_stream(stream_);
  }

  at::Tensor tensor() const override { return tensor_; }
  void start(double scale) override {
    const c10::DeviceGuard guard(tensor_.device());
    scale_ = scale_before_sum(tensor_, scale);
    ready_.record(current_stream(tensor_.device()));
    ready_.block(stream_);
    communicator_->run("ncclAllReduce", [&](ncclComm_t communicator) {
      return api_.all_reduce(tensor_.data_ptr(), tensor_.data_ptr(), static_cast<std::size_t>(tensor_.numel()),
                             nccl_type(tensor_.scalar_type()), ncclSum, communicator, handle_of(stream_));
    });
    done_.record(stream_);
  }
  void poke() override {}
  void contribute() override {}
  /// The host waits for the end: an aborted all-reduce leaves anything in the gradients, and the step that would use
  /// them comes right after this.
  void finish() override {
    const c10::DeviceGuard guard(tensor_.device());
    communicator_->wait("ncclAllReduce", [&] { return done_.query(); });
    done_.block(current_stream(tensor_.device()));
    if (scale_ != 1.0) tensor_.mul_(scale_);
  }

private:
  std::shared_ptr<NcclCommunicator> communicator_;
  const NcclApi& api_;
  c10::Stream stream_;
  at::Tensor tensor_;
  c10::Event ready_{c10::kCUDA};
  c10::Event done_{c10::kCUDA};
  double scale_ = 1;
};

class NcclCollective : public NcclGroup {
public:
  NcclCollective(const NcclApi& api, NcclOptions options, std::shared_ptr<Store> store)
      : api_(api),
        options_(std::move(options)),
        store_(std::move(store)),
        communicator_(std::make_shared<NcclCommunicator>(api, options_.members[static_cast<std::size_t>(options_.rank)],
                                                         options_.timeout)) {}

  int rank() const override { return options_.rank; }
  int size() const override { return static_cast<int>(options_.members.size()); }
  c10::Device device() const override { return options_.device; }
  std::size_t bucket_bytes() const override { return std::size_t{25} << 20; }

  void form() override {
    meet(*store_, options_.prefix + "/here", options_.members[static_cast<std::size_t>(rank())], options_.members,
         options_.timeout);
    const auto key = options_.prefix + "/id";
    ncclUniqueId id{};
    if (rank() == 0) {
      if (const auto result = api_.get_unique_id(&id); result != ncclSuccess)
        throw Error(ErrorCode::start_failed, fmt::format("ncclGetUniqueId failed: {}", api_.get_error_string(result)));
      store_->set(key, std::string(id.internal, sizeof id.internal));
    } else {
      const auto bytes = store_->get(key, options_.timeout);
      std::memcpy(id.internal, bytes.data(), std::min(bytes.size(), sizeof id.internal));
    }
    const c10::DeviceGuard guard(options_.device);
    communicator_->init(id, rank(), size());
  }

  std::unique_ptr<ReduceBuffer> make_buffer(std::int64_t elements, at::ScalarType type) override {
    const auto stream = c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(options_.device, true);
    return std::make_unique<NcclBuffer>(communicator_, api_, stream,
                                        at::zeros({elements}, at::TensorOptions(type).device(options_.device)));
  }

  void abort() noexcept override { communicator_->abort(); }

protected:
  void reduce_flat(const at::Tensor& flat, Reduce reduce, double scale, const Operation&) override {
    if (flat.numel() == 0) return;
    auto sent = flat.to(carried_type(flat.scalar_type(), reduce));
    run("ncclAllReduce", [&](ncclComm_t communicator, cudaStream_t stream) {
      return api_.all_reduce(sent.data_ptr(), sent.data_ptr(), static_cast<std::size_t>(sent.numel()),
                             nccl_type(sent.scalar_type()), nccl_reduction(reduce), communicator, stream);
    });
    if (scale != 1.0) sent.mul_(scale);
    if (!sent.is_same(flat)) flat.copy_(sent);
  }

  void broadcast_flat(const at::Tensor& flat, int root, const Operation&) override {
    if (flat.numel() == 0) return;
    run("ncclBroadcast", [&](ncclComm_t communicator, cudaStream_t stream) {
      return api_.broadcast(flat.data_ptr(), flat.data_ptr(), flat.nbytes(), ncclUint8, root, communicator, stream);
    });
  }

  void gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all, const Operation&) override {
    if (flat.numel() == 0) return;
    auto sizes = flat.sizes().vec();
    sizes.insert(sizes.begin(), size());
    const auto gathered = at::empty(sizes, flat.options());
    run("ncclAllGather", [&](ncclComm_t communicator, cudaStream_t stream) {
      return api_.all_gather(flat.data_ptr(), gathered.data_ptr(), flat.nbytes(), ncclUint8, communicator, stream);
    });
    for (int other = 0; other < size(); ++other) all[static_cast<std::size_t>(other)].copy_(gathered[other]);
  }

  at::Tensor scatter_flat(const at::Tensor& flat, const Operation& operation) override {
    if (flat.numel() == 0 || flat.is_complex()) return Collective::scatter_flat(flat, operation);
    const auto sent = flat.to(carried_type(flat.scalar_type(), Reduce::sum));
    auto sizes = sent.sizes().vec();
    sizes.front() /= size();
    const auto piece = at::empty(sizes, sent.options());
    run("ncclReduceScatter", [&](ncclComm_t communicator, cudaStream_t stream) {
      return api_.reduce_scatter(sent.data_ptr(), piece.data_ptr(), static_cast<std::size_t>(piece.numel()),
                                 nccl_type(sent.scalar_type()), ncclSum, communicator, stream);
    });
    return piece.to(flat.scalar_type());
  }

  void wait_for_all(const Operation& operation) override {
    reduce_flat(at::zeros({1}, at::TensorOptions(at::kFloat).device(options_.device)), Reduce::sum, 1.0, operation);
  }

private:
  /// The host waits for the end: a peer that dies meanwhile must end this call, not a later one.
  template <class Call>
  void run(const char* what, Call&& call) {
    const c10::DeviceGuard guard(options_.device);
    const auto stream = current_stream(options_.device);
    communicator_->run(what, [&](ncclComm_t communicator) { return call(communicator, handle_of(stream)); });
    c10::Event done(c10::kCUDA);
    done.record(stream);
    communicator_->wait(what, [&] { return done.query(); });
  }

  const NcclApi& api_;
  const NcclOptions options_;
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<NcclCommunicator> communicator_;
};

}  // namespace

std::shared_ptr<NcclGroup> make_nccl_group(NcclOptions options, std::shared_ptr<Store> store) {
  const auto& api = NcclApi::instance();
  if (!options.device.is_cuda())
    throw Error(ErrorCode::start_failed,
                "NCCL works on GPUs, but this worker has none: set use_gpu = true, or choose TorchConfig.backend = "
                "\"gloo\"");
  return std::make_shared<NcclCollective>(api, std::move(options), std::move(store));
}

}  // namespace troupe
