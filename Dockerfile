# feeder with DALI and pillow-simd, for one NVIDIA GPU or more (driver 580 or newer):
#   docker build -t feeder .
#   docker run --rm -v /data:/data feeder shard /data/images
#   docker run --rm --gpus all -v /data:/data --entrypoint python feeder /data/train.py
#
# The smallest CUDA image is enough: the wheels of torch and DALI bring the CUDA libraries that they need.
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-base-ubuntu24.04

FROM ${CUDA_IMAGE} AS build
# Ubuntu's mirrors keep only the newest of each package, so a pinned version would soon fail to install.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        g++ libjpeg-dev libopenjp2-7-dev libtiff-dev pkg-config python3-dev python3-venv zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*

RUN python3 -m venv /opt/feeder
ENV PATH=/opt/feeder/bin:$PATH \
    PIP_CONSTRAINT=/src/constraints.txt \
    PIP_BUILD_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /src

# The large packages stay in layers of their own, which a change of feeder's code doesn't touch.
COPY constraints.txt ./
# Versions are in constraints.txt, which hadolint doesn't see.
# hadolint ignore=DL3013
RUN pip install torch \
    && pip install nvidia-dali-cuda130 pyarrow webdataset

COPY CMakeLists.txt LICENSE README.md pyproject.toml ./
COPY kernels kernels
COPY feeder feeder
# pillow-simd goes last, over pillow. Every CPU beside a GPU that CUDA 13 supports has AVX2; set another compiler
# command for one that hasn't.
ARG PILLOW_SIMD_CC="cc -mavx2"
# hadolint ignore=DL3013
RUN pip install ".[dali-cuda13,gpu,nvml,parquet]" \
    && CC="${PILLOW_SIMD_CC}" pip install --no-deps --force-reinstall --no-binary pillow-simd pillow-simd \
    && feeder --version -v

FROM ${CUDA_IMAGE}
# The libraries that pillow-simd links; and the compiler and headers with which Triton makes its access to the driver.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        gcc libc6-dev libjpeg-turbo8 libopenjp2-7 libtiff6 libwebp7 libwebpdemux2 libwebpmux3 python3 python3-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 feeder
COPY --from=build /opt/feeder /opt/feeder
ENV PATH=/opt/feeder/bin:$PATH \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility,video
USER 10001:10001
WORKDIR /data
# Fails the build where a library is missing here that was there to compile against.
RUN feeder --version -v && python -c "from PIL import Image; import pynvml, torch, triton, nvidia.dali, feeder, feeder._gpu" \
    && python -c "from feeder._gpu import dispatch; assert dispatch._lacks() is None, dispatch._lacks()"
ENTRYPOINT ["feeder"]
CMD ["--help"]
