#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs moto's S3 server on a free port of the loopback address, makes a bucket "bucket", prints the port and serves until
stdin is closed."""
import logging
import sys

import boto3
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1",
                      aws_access_key_id="any", aws_secret_access_key="any")
client.create_bucket(Bucket="bucket")
print(port, flush=True)
sys.stdin.read()
