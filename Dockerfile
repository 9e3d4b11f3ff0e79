# The wheel and nothing else: docker build -t archzoo . && docker run -v "$PWD:/archzoo" archzoo model=kda seed=1
# Results and, in .cache, data and compiled kernels go to the folder that is mounted at /archzoo.
FROM python:3.13-slim AS build
COPY . /checkout
RUN pip wheel --no-cache-dir --no-deps -w /wheel /checkout

FROM python:3.13-slim
COPY --from=build /wheel /wheel
COPY constraints.txt /wheel/
# Numba and Triton's launcher want a C compiler where they run.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
 && pip install --no-cache-dir -c /wheel/constraints.txt /wheel/*.whl
ENV XDG_CACHE_HOME=/archzoo/.cache
WORKDIR /archzoo
ENTRYPOINT ["archzoo"]
