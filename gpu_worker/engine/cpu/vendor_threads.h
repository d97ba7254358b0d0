// How many threads the vendor's primitives use when they are made or run by the calling thread.
//
// oneDNN promises equal bits for one number of threads only and asks OpenMP for it; OpenMP keeps
// the number per calling thread. So every thread that touches a primitive sets 1 first (rule R5).
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_VENDOR_THREADS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_VENDOR_THREADS_H_

namespace capstan::engine {

// Sets the number for the calling thread and returns what it was. Without a vendor library: 1.
int SetVendorThreads(int threads);

// One vendor thread while it lives, then what was before: for threads that are not ours.
class OneVendorThread {
 public:
  OneVendorThread() : before_(SetVendorThreads(1)) {}
  ~OneVendorThread() { SetVendorThreads(before_); }
  OneVendorThread(const OneVendorThread&) = delete;
  OneVendorThread& operator=(const OneVendorThread&) = delete;

 private:
  const int before_;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_VENDOR_THREADS_H_
