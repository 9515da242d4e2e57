#include "kernels_of.h"

MULTINT_KERNELS(float32, float)
