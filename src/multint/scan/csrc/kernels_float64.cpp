#include "kernels_of.h"

MULTINT_KERNELS(float64, double)
