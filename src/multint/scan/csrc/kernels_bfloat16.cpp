#include "kernels_of.h"

MULTINT_KERNELS(bfloat16, bfloat16)
