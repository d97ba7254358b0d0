// ParamStoreService on gRPC: of Exchange raw messages, so that payloads stay outside protobuf.
#ifndef CAPSTAN_PARAM_STORE_EXCHANGE_SERVICE_H_
#define CAPSTAN_PARAM_STORE_EXCHANGE_SERVICE_H_

#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "exchange/transport/server_stream.h"

namespace capstan::param_store {

// All methods on the callback API: one of the other would cost threads of its own.
using CallbackParamStoreService = v1::ParamStoreService::WithCallbackMethod_Measure<
    v1::ParamStoreService::WithRawCallbackMethod_Exchange<v1::ParamStoreService::Service>>;

// Thread-safe. Borrows the directory.
class ExchangeService final : public CallbackParamStoreService {
 public:
  // `hello_timeout`: a stream that has not said its Hello by then is ended.
  explicit ExchangeService(exchange::JobDirectory& directory,
                           absl::Duration hello_timeout = exchange::ServerStream::kHelloTimeout)
      : directory_(directory), hello_timeout_(hello_timeout) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override {
    return exchange::ServerStream::Start(*context, directory_, hello_timeout_);
  }
  grpc::ServerUnaryReactor* Measure(grpc::CallbackServerContext* context,
                                    const v1::MeasureRequest* request,
                                    v1::MeasureResponse* response) override {
    response->set_received_bytes(static_cast<int64_t>(request->payload().size()));
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

 private:
  exchange::JobDirectory& directory_;
  const absl::Duration hello_timeout_;
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_EXCHANGE_SERVICE_H_
