// A libcuda.so.1 that opens but contains nothing, for tests on machines without a driver.
int capstan_empty_driver = 0;
