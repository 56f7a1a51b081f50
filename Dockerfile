# feeder with DALI and pillow-simd on x86-64, for one NVIDIA GPU or more (driver 580 or newer):
#   docker build -t feeder .
#   docker run --rm --init --user "$(id -u):$(id -g)" -v /data:/data feeder shard /data/images
#   docker run --rm --init --user "$(id -u):$(id -g)" -v /data:/data --gpus all --entrypoint python feeder /data/train.py
# Without --user it runs as user 10001, who may write to /data only where that is a volume, or a folder of that user's.
#
# The smallest CUDA image is enough: the wheels of torch and DALI bring the CUDA libraries that they need.
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-base-ubuntu24.04

# What has to be compiled, as wheels.
FROM ${CUDA_IMAGE} AS wheels
# Ubuntu's mirrors keep only the newest of each package, so a pinned version would soon fail to install.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        g++ libdeflate-dev libjpeg-dev libopenjp2-7-dev libtiff-dev pkg-config python3-dev python3-venv zlib1g-dev \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/build
WORKDIR /src
COPY constraints.txt ./
ENV PATH=/opt/build/bin:$PATH \
    PIP_CONSTRAINT=/src/constraints.txt \
    PIP_BUILD_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
# Every CPU beside a GPU that CUDA 13 supports has AVX2; set another compiler command for one that hasn't.
ARG PILLOW_SIMD_CC="cc -mavx2"
RUN CC="${PILLOW_SIMD_CC}" pip wheel --no-deps --no-binary pillow-simd --wheel-dir /wheels pillow-simd
COPY CMakeLists.txt LICENSE README.md pyproject.toml ./
COPY kernels kernels
COPY licenses licenses
COPY scripts/nvcc.sh scripts/
COPY feeder feeder
# nvcc for the kernels of the backend "cuda"; the image itself needs none.
RUN PATH="$(scripts/nvcc.sh):$PATH" pip wheel --no-deps --config-settings=cmake.define.FEEDER_CUDA=ON --wheel-dir /wheels .

FROM ${CUDA_IMAGE}
# The libraries that pillow-simd links; and the compiler and headers with which Triton makes its access to the driver.
# Any user may write to HOME, where Triton, torch and others keep what they have compiled or fetched.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        gcc libc6-dev libjpeg-turbo8 libopenjp2-7 libtiff6 libwebp7 libwebpdemux2 libwebpmux3 \
        python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 feeder \
    && chmod 1777 /home/feeder
ENV PATH=/opt/feeder/bin:$PATH \
    HOME=/home/feeder \
    PIP_NO_CACHE_DIR=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
COPY constraints.txt /opt/feeder/
# Arguments, and so no longer set in a container or in what is built on this image.
ARG PIP_CONSTRAINT=/opt/feeder/constraints.txt
ARG PIP_DISABLE_PIP_VERSION_CHECK=1
# The large packages stay in layers of their own, which a change of feeder's code doesn't touch.
# Versions are in constraints.txt, which hadolint doesn't see.
# hadolint ignore=DL3013
RUN python3 -m venv /opt/feeder && pip install torch
# hadolint ignore=DL3013
RUN pip install nvidia-dali-cuda130 pyarrow webdataset
# Copied and not mounted, as not every builder sees that what it would mount has changed.
COPY --from=wheels /wheels /wheels
# pillow-simd goes last, over pillow.
RUN pip install "$(echo /wheels/feeder_data-*.whl)[dali-cuda13,gpu,nvml,parquet]" \
    && pip install --no-deps /wheels/pillow_simd-*.whl \
    && rm -r /wheels
USER 10001:10001
WORKDIR /data
# Fails the build where a library is missing here that was there to compile against.
RUN feeder --version -v && python -c "from PIL import _imaging, _webp; import pynvml, torch, triton, nvidia.dali, feeder.decoders.gpu" \
    && python -c "from feeder.decoders.gpu import dispatch; assert dispatch.lacks() is None, dispatch.lacks()"
ENTRYPOINT ["feeder"]
CMD ["--help"]
