// Nothing: a libcuda.so.1 that opens, for tests on machines without a driver.
int capstan_empty_driver = 0;
