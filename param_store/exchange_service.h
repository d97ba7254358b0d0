// ParamStoreService on gRPC: raw messages, so that payloads stay outside protobuf.
#ifndef CAPSTAN_PARAM_STORE_EXCHANGE_SERVICE_H_
#define CAPSTAN_PARAM_STORE_EXCHANGE_SERVICE_H_

#include "capstan/param_store/v1/param_store.grpc.pb.h"
#include "param_store/server_stream.h"

namespace capstan::param_store {

// Thread-safe. Borrows the directory.
class ExchangeService final
    : public v1::ParamStoreService::WithRawCallbackMethod_Exchange<v1::ParamStoreService::Service> {
 public:
  explicit ExchangeService(JobDirectory& directory) : directory_(directory) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Exchange(
      grpc::CallbackServerContext* context) override {
    return ServerStream::Start(*context, directory_);
  }

 private:
  JobDirectory& directory_;
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_EXCHANGE_SERVICE_H_
