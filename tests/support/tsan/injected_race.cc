// Deliberate races, so that the suppressions of the thread-sanitizer run can never blind it.
//
//   injected_race clean         two threads and a lock: nothing to report
//   injected_race plain         two threads, one counter, no lock
//   injected_race grpc_handler  the same counter in a handler of a gRPC server (callback API);
//                               every stack has gRPC's frames below ours there
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "services/sync/mutex.h"

namespace {

int unlocked_counter = 0;

// The race that must be reported, under this function's name.
__attribute__((noinline)) void Increment() { ++unlocked_counter; }

void RunInTwoThreads(void (*work)()) {
  std::thread first([work] {
    for (int i = 0; i < 1000; ++i) work();
  });
  std::thread second([work] {
    for (int i = 0; i < 1000; ++i) work();
  });
  first.join();
  second.join();
}

capstan::Mutex counter_mu;
int locked_counter ABSL_GUARDED_BY(counter_mu) = 0;

void IncrementLocked() {
  capstan::MutexLock lock(counter_mu);
  ++locked_counter;
}

// Does the racy increment and answers every call with OK.
class RacyReactor : public grpc::ServerGenericBidiReactor {
 public:
  RacyReactor() {
    Increment();
    Finish(grpc::Status::OK);
  }
  void OnDone() override { delete this; }
};

class RacyService : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new RacyReactor;
  }
};

void CallManyTimes(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  for (int i = 0; i < 200; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    grpc::CompletionQueue queue;
    grpc::ByteBuffer request;
    grpc::ByteBuffer response;
    grpc::Status status;
    auto call = stub.PrepareUnaryCall(&context, "/injected.Race/Call", request, &queue);
    call->StartCall();
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
  }
}

void RaceInHandler() {
  RacyService service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&service);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([port, i] {
      grpc::ChannelArguments own;  // a connection per client, so that handlers overlap
      own.SetInt("injected_race.client", i);
      CallManyTimes(grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                              grpc::InsecureChannelCredentials(), own));
    });
  }
  for (std::thread& client : clients) client.join();
  server->Shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  const absl::string_view mode = argc == 2 ? argv[1] : "";
  if (mode == "clean") {
    RunInTwoThreads(IncrementLocked);
  } else if (mode == "plain") {
    RunInTwoThreads(Increment);
  } else if (mode == "grpc_handler") {
    RaceInHandler();
  } else {
    std::fprintf(stderr, "usage: injected_race clean|plain|grpc_handler\n");
    return 2;
  }
  std::printf("done\n");
  return 0;
}
