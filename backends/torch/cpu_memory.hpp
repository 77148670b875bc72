// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace troupe {

/// From now on CPU tensors of this process live in blocks that are kept for later ones (a BlockCache). Once is enough.
/// Tensors from before stay as they are.
void keep_tensor_memory();

}  // namespace troupe
